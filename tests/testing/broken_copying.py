"""Broken subclasses for the rules of the family copying."""

from __future__ import annotations

import functools
import weakref

import torch
from broken import breaks
from sound import Sound, is_parameter, unpickle

aten = torch.ops.aten


@breaks("ST501")
class DetachCopies(Sound):
    """Detach gives a copy."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.detach.default:
            return cls(args[0].data_.clone(), args[0].extra.clone(), args[0].tag, args[0].size(), args[0].stride())
        return super().compute(func, args, kwargs)


@breaks("ST502")
class CloneShares(Sound):
    """Clone shares the idle inner tensor."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten.clone.default:
            out.extra = args[0].extra
        return out


@breaks("ST503")
class IgnoresDtype(Sound):
    """to(dtype) keeps the dtype."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten._to_copy.default:
            kwargs = {**kwargs, "dtype": args[0].dtype}
        return super().compute(func, args, kwargs)


@breaks("ST503")
class LeavesOneBehind(Sound):
    """to(device) moves one of two inner tensors."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        if func is aten._to_copy.default:
            out.extra = args[0].extra
        return out


@breaks("ST505")
class CopyShares(Sound):
    """copy_ takes the tensor of the source."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.copy_.default and isinstance(args[0], cls) and isinstance(args[1], cls):
            args[0].data_ = args[1].data_
            return args[0]
        return super().compute(func, args, kwargs)


@breaks("ST506")
class DeepcopyShares(Sound):
    """A deep copy shares memory."""

    def __deepcopy__(self, memo):
        memo[id(self)] = super().__deepcopy__(memo)
        memo[id(self)].extra = self.extra
        return memo[id(self)]


@breaks("ST507")
class PickleLosesContext(Sound):
    """Pickling gives another context."""

    def __reduce_ex__(self, protocol):
        function, (cls, inner, context, *rest) = super().__reduce_ex__(protocol)
        return function, (cls, inner, context + "'", *rest)


@breaks("ST507")
class SaveLosesValues(Sound):
    """torch.save (which asks for protocol 2) writes other values."""

    def __reduce_ex__(self, protocol):
        function, (cls, inner, *rest) = super().__reduce_ex__(protocol)
        if protocol == 2:
            inner = {**inner, "extra": torch.ones(2)}
        return function, (cls, inner, *rest)


@breaks("ST509")
class PicklesPartial(Sound):
    """Pickles as a call that the safe loader does not make."""

    def __reduce_ex__(self, protocol):
        _, (cls, *rest) = super().__reduce_ex__(protocol)
        return functools.partial(unpickle, cls), tuple(rest)


@breaks("ST510")
class NeverParameter(Sound):
    """nn.Parameter does not make a parameter of it."""

    @property
    def _is_param(self):
        return False

    @_is_param.setter
    def _is_param(self, value):
        pass


@breaks("ST511")
class ParameterNotWritten(Sound):
    """copy_ into a parameter does nothing."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.copy_.default and is_parameter(args[0]):
            return args[0]
        return super().compute(func, args, kwargs)


LIVE = weakref.WeakSet()


@breaks("ST512")
class Registered(Sound):
    """Each instance is known to a weak set."""

    def __init__(self, *args, **kwargs):
        LIVE.add(self)


@breaks("ST513")
class LosesAlpha(Sound):
    """add_ ignores alpha."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.add_.Tensor:
            kwargs = {}
        return super().compute(func, args, kwargs)


@breaks("ST514")
class ParameterTurnsDense(Sound):
    """A converted parameter is a dense tensor."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten._to_copy.default and is_parameter(args[0]):
            return func(args[0].data_, **kwargs)
        return super().compute(func, args, kwargs)


@breaks("ST515")
class TorchsOwnCopy(Sound):
    """Uses torch's deepcopy and pickling, which do not know storage offsets."""

    __deepcopy__ = torch.Tensor.__deepcopy__
    __reduce_ex__ = torch.Tensor.__reduce_ex__
