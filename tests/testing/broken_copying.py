"""Broken subclasses for the rules of the family copying."""

from __future__ import annotations

import torch
from broken import breaks, miscomputes
from sound import Sound, is_parameter

aten = torch.ops.aten


@miscomputes("ST501", aten.detach.default)
def DetachCopies(cls, right, func, args, kwargs):
    """Detach gives a copy."""
    return cls(args[0].data_.clone(), args[0].extra.clone(), args[0].tag, args[0].size(), args[0].stride())


@miscomputes("ST502", aten.clone.default)
def CloneShares(cls, right, func, args, kwargs):
    """Clone shares the idle inner tensor."""
    out = right(func, args, kwargs)
    out.extra = args[0].extra
    return out


@miscomputes("ST503", aten._to_copy.default)
def IgnoresDtype(cls, right, func, args, kwargs):
    """to(dtype) keeps the dtype."""
    kwargs = {**kwargs, "dtype": args[0].dtype}
    return right(func, args, kwargs)


@miscomputes("ST503", aten._to_copy.default)
def LeavesOneBehind(cls, right, func, args, kwargs):
    """to(device) moves one of two inner tensors."""
    out = right(func, args, kwargs)
    out.extra = args[0].extra
    return out


@miscomputes("ST505", aten.copy_.default, heads=("ST326",))
def CopyShares(cls, right, func, args, kwargs):
    """copy_ takes the tensor of the source."""
    if isinstance(args[0], cls) and isinstance(args[1], cls):
        args[0].data_ = args[1].data_
        return args[0]
    return right(func, args, kwargs)


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


@breaks("ST510")
class NeverParameter(Sound):
    """nn.Parameter does not make a parameter of it."""

    @property
    def _is_param(self):
        return False

    @_is_param.setter
    def _is_param(self, value):
        pass


@miscomputes("ST511", aten.copy_.default)
def ParameterNotWritten(cls, right, func, args, kwargs):
    """copy_ into a parameter does nothing."""
    if is_parameter(args[0]):
        return args[0]
    return right(func, args, kwargs)


@miscomputes("ST513", aten.add_.Tensor, heads=("ST314",))
def LosesAlpha(cls, right, func, args, kwargs):
    """add_ ignores alpha."""
    kwargs = {}
    return right(func, args, kwargs)


@miscomputes("ST514", aten._to_copy.default)
def ParameterTurnsDense(cls, right, func, args, kwargs):
    """A converted parameter is a dense tensor."""
    if is_parameter(args[0]):
        return func(args[0].data_, **kwargs)
    return right(func, args, kwargs)


@breaks("ST515")
class TorchsOwnCopy(Sound):
    """Uses torch's deepcopy and pickling, which do not know storage offsets."""

    __deepcopy__ = torch.Tensor.__deepcopy__
    __reduce_ex__ = torch.Tensor.__reduce_ex__
