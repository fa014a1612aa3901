"""`WrapperTensor`: declare a traceable wrapper subclass like a dataclass.

    >>> import torch
    >>> from torch import Tensor
    >>> from subclass_trace.authoring import WrapperTensor
    >>> class Scaled(WrapperTensor, default="dequantize"):
    ...     codes: Tensor
    ...     scale: Tensor
    ...     def dequantize(self) -> Tensor:
    ...         return self.codes * self.scale
    >>> x = Scaled(torch.ones(2, 2), torch.tensor(3.0))
    >>> x
    Scaled(codes=tensor([[1., 1.],
            [1., 1.]]), scale=tensor(3.))
    >>> x @ torch.ones(2)
    tensor([6., 6.])
    >>> x.__tensor_flatten__()
    (['codes', 'scale'], None)

The class that comes out speaks PyTorch's protocol and nothing else: `__tensor_flatten__`, `__tensor_unflatten__`,
``__torch_dispatch__``. The author's guide, docs/authoring.md, goes from here to a trainable FP8 wrapper.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from typing_extensions import Self, dataclass_transform

from .. import torch_api
from ..errors import ProtocolError, UnsupportedError
from ..subclass.context import same_context
from ..torch_api import authors as _authors
from ..torch_api.dynamo import never_compiled
from . import families, sharding
from .defaults import DEFAULTS, DENSE
from .families import Family
from .fields import FIELDS, Field, FieldKind, declared_fields, fields_of
from .generate import BUILD, VALUES, Outer, methods_for
from .hashing import stable_hash
from .implements import (
    DEFAULT,
    FAMILIES,
    FUNCTIONS,
    OPERATIONS,
    RESOLVED,
    Resolved,
    add_family,
    add_functions,
    add_operations,
    operations_of,
    resolve,
    torch_function,
)
from .saving import allow_loading, rebuild

F = TypeVar("F", bound=Callable[..., Any])
_COERCE = "__coerce_same_metadata_as_tangent__"


@dataclass_transform(eq_default=False)
class WrapperTensor(torch.Tensor):
    """Base of declared wrappers. Annotate inner tensors as ``Tensor`` or ``Tensor | None``, context as anything else.

    Class arguments:
        default: what operations without a rule do: ``"refuse"`` (UnsupportedError; the default of the default),
            ``"dequantize"`` (compute on ``self.dequantize()``, the result is dense), or ``"per_inner"`` (run on each
            inner tensor, the result is wrapped again). Inherited.
        advice: what users are told to do instead where an operation is refused. Inherited.

    What the class gets: constructor, `__tensor_flatten__`, `__tensor_unflatten__`, ``__torch_dispatch__``, repr,
    pickle, ``torch.save`` and ``torch.load(weights_only=True)``, deepcopy, the hooks of torch.compile's caches and
    guards, and those of FSDP2. Whatever the class defines itself stays.

    What an author may add: ``outer_metadata`` (if the outside does not look like the first inner tensor),
    ``__post_init__`` (checks; runs for constructor calls, not for unflatten), ``dequantize``, ``requantize_``, and
    rules by `implements` and the families.

    Raises:
        ProtocolError: at class creation, for a declaration that cannot work; the message has the fix.
    """

    __torch_function__ = torch_api.disabled_torch_function
    _wrapper_default: ClassVar[str] = "refuse"
    _wrapper_has_metadata: ClassVar[bool] = False
    _wrapper_advice: ClassVar[str | None] = None
    _wrapper_lazy_bits: ClassVar[bool] = False  # has an inner tensor ever had a conjugate or negative bit?

    # -------------------------------------------------------------------------------------------- making the class
    def __init_subclass__(cls, *, default: str | None = None, advice: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._wrapper_advice = cls._wrapper_advice if advice is None else advice
        fields = declared_fields(cls, _reserved())
        setattr(cls, FIELDS, fields)
        for name, empty in ((OPERATIONS, {}), (FUNCTIONS, {}), (FAMILIES, []), (RESOLVED, Resolved(cls))):
            setattr(cls, name, empty)
        cls._wrapper_has_metadata = "outer_metadata" in vars(cls) or cls._wrapper_has_metadata
        _set_default(cls, default)
        _check_sized(cls, fields)
        metadata = cls.outer_metadata if cls._wrapper_has_metadata else None
        for name, method in methods_for(cls, fields, metadata).items():
            if name not in vars(cls):
                setattr(cls, name, method)
        allow_loading(cls, fields)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Replaced in each class by a constructor that takes its fields."""
        raise ProtocolError(
            f"{cls.__name__} declares nothing",
            path=cls.__name__,
            fix="subclass it, and annotate the inner tensors: class MyTensor(WrapperTensor): data_: Tensor",
        )

    def __post_init__(self) -> None:
        """Called at the end of the constructor: the place for checks. Unflatten does not call it."""

    @classmethod
    def outer_metadata(cls, fields: Any) -> Outer:
        """What the outer tensor looks like. Override it where that is not what the first inner tensor looks like.

        Args:
            fields: the fields of the tensor that is about to be made, as attributes.

        Sizes may be symbolic; compute with them, and do not branch on them. Sizes and strides that
        ``__tensor_unflatten__`` is given have precedence.
        """
        return Outer()

    # ------------------------------------------------------------------------------------------------------- rules
    @classmethod
    def implements(cls, *operations: Any) -> Callable[[F], F]:
        """Decorator: ``rule(func, *args, **kwargs)`` serves these ATen operations, for this class and its subclasses.

        Give overloads (``aten.mm.default``), packets (``aten.add``: all overloads) or groups (`authoring.views`, ...; a
        rule for one operation has precedence). A rule may return NotImplemented to leave a call to the default. What it
        returns is put right: in-place and out= operations return the written argument, and views share the storage of
        their base.

        Raises:
            ProtocolError: no ATen operation, or a composite one, which never arrives (see the guide).
        """
        _check_declared(cls, "implements")
        return add_operations(cls, operations)

    @classmethod
    def implements_torch_function(cls, *functions: Any) -> Callable[[F], F]:
        """Decorator: ``rule(func, *args, **kwargs)`` serves these torch functions, above autograd.

        This is where a ``torch.autograd.Function`` is attached. For functions without a rule nothing changes. A rule
        may return NotImplemented to let the function run as usual.
        """
        _check_declared(cls, "implements_torch_function")
        register = add_functions(cls, functions)
        if cls.__torch_function__ is torch_api.disabled_torch_function:
            cls.__torch_function__ = classmethod(_dispatch_function)
        return register

    @classmethod
    def implements_per_inner(cls, *operations: Any, inner: Sequence[str] | None = None) -> None:
        """Run these ATen operations, or groups of them, on each inner tensor and wrap the results again.

        Args:
            inner: the inner tensors that take part, if not all; a view shares the others with its base, a new tensor
                has copies of them, an in-place operation leaves them alone.
        """
        _add_families(cls, "implements_per_inner", operations, inner)

    @classmethod
    def implements_views(cls, *operations: Any, inner: Sequence[str] | None = None) -> None:
        """`implements_per_inner` for these views, or for all views of values. Needs inner tensors shaped like self."""
        _add_families(cls, "implements_views", operations or (families.views,), inner)

    @classmethod
    @never_compiled  # with all that it calls: after a graph break it runs while Dynamo looks for frames to compile
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        resolved: Resolved = cls.__dict__[RESOLVED]
        for t in types:
            if t not in resolved.friends and not _befriend(cls, t):
                return NotImplemented
        run = resolved.of.get(func) or resolve(cls, func)
        if cls._wrapper_lazy_bits:
            with _authors.seeing_lazy_bits():
                return run(args, kwargs or {})
        return run(args, kwargs or {})

    # ------------------------------------------------------------------------------------------------------ values
    def replace(
        self, *, outer_size: Sequence[Any] | None = None, outer_stride: Sequence[Any] | None = None, **changes: Any
    ) -> Self:
        """The same wrapper with some fields changed. Not differentiable; the result does not require grad.

        Args:
            outer_size, outer_stride: of the result, where ``outer_metadata`` cannot know them.
            changes: new values of fields.
        """
        values = getattr(self, VALUES)()
        if not changes.keys() <= values.keys():
            raise ProtocolError(
                f"{type(self).__name__} has no field {', '.join(sorted(changes.keys() - values.keys()))}",
                path=type(self).__name__,
                expected=f"some of {list(values)}",
                fix="replace() takes fields, outer_size and outer_stride",
            )
        values.update(changes)
        new: Self = getattr(type(self), BUILD)(**values, outer_size=outer_size, outer_stride=outer_stride)
        return new

    def __repr__(self) -> str:  # type: ignore[override]
        with torch_api.no_modes():  # printing is not part of a traced program
            parts = []
            for name, value in getattr(self, VALUES)().items():  # no comprehension: the caller asks for the text
                parts.append(f"{name}={value!r}")
            if self.grad_fn is not None:
                parts.append(f"grad_fn=<{type(self.grad_fn).__name__}>")
            elif self.requires_grad:
                parts.append("requires_grad=True")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if id(self) in memo:
            known: Self = memo[id(self)]
            return known
        if not self.is_leaf:
            raise UnsupportedError(
                f"a {type(self).__name__} with a grad_fn cannot be copied deeply",
                expected="a leaf of the autograd graph",
                fix="copy x.detach()",
            )
        values = getattr(self, VALUES)()
        values |= {f.name: copy.deepcopy(values[f.name], memo) for f in fields_of(type(self)) if f.is_inner}
        new: Self = getattr(type(self), BUILD)(**values, outer_size=self.shape, outer_stride=self.stride())
        new.__dict__.update({k: copy.deepcopy(v, memo) for k, v in vars(self).items() if k not in values})
        new.requires_grad_(self.requires_grad)
        if self.grad is not None:
            new.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = new
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        values = getattr(self, VALUES)()
        extra = {k: v for k, v in vars(self).items() if k not in values}
        return rebuild, (type(self), values, tuple(self.shape), tuple(self.stride()), self.requires_grad, extra)

    # ------------------------------------------------------------------------------------------------ torch's hooks
    @classmethod
    def __metadata_guard__(cls, a: Any, b: Any) -> bool:
        """Are two contexts the same, for guards? NaN is NaN here, and 1 is neither 1.0 nor True."""
        return same_context(a, b)

    def _stable_hash_for_caching(self) -> str:
        """The key of AOTAutograd's cache for this tensor: the same in each process."""
        return stable_hash(self)

    def fsdp_pre_all_gather(
        self, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[torch.Tensor, ...], Any]:
        """FSDP2: what each rank sends. Derived where rows of the wrapper are rows of each inner tensor."""
        return sharding.pre_all_gather(self, mesh.size(), outer_size)

    def fsdp_post_all_gather(
        self, all_gather_outputs: tuple[torch.Tensor, ...], metadata: Any, param_dtype: Any, *, out: Any = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:
        """FSDP2: the whole parameter from what all ranks sent."""
        return sharding.post_all_gather(self, all_gather_outputs, metadata, out)


# ------------------------------------------------------------------------------------------------- making the class
def _reserved() -> frozenset[str]:
    names = {"self", "cls", "outer_size", "outer_stride", "requantize_", "names"}  # torch 2.11 has Tensor.names
    return frozenset(names) | frozenset(dir(torch.Tensor)) | frozenset(dir(WrapperTensor))


def _check_declared(cls: type, method: str) -> None:
    if cls is WrapperTensor:
        raise ProtocolError(
            f"{method}() on WrapperTensor would change every class",
            path="WrapperTensor",
            fix="call it on your own class; subclasses of that inherit the rule",
        )


def _check_sized(cls: type[WrapperTensor], fields: tuple[Field, ...]) -> None:
    first = next((f for f in fields if f.is_inner), None)
    if cls._wrapper_has_metadata or (first is not None and first.kind is FieldKind.TENSOR):
        return
    what = "declares no inner tensor" if first is None else f"has a first inner tensor, {first.name}, that may be None"
    raise ProtocolError(
        f"{cls.__name__} {what}, so there is nothing to take its size and dtype from",
        path=cls.__name__,
        expected="a first inner tensor annotated as Tensor, or outer_metadata",
        fix="@classmethod\n            def outer_metadata(cls, fields): return Outer(size=..., dtype=...)",
    )


def _set_default(cls: type[WrapperTensor], default: str | None) -> None:
    if default is not None:
        if default not in DEFAULTS:
            raise ProtocolError(
                f"{default!r} is no default for operations",
                path=cls.__name__,
                expected=" or ".join(map(repr, DEFAULTS)),
                fix=f'class {cls.__name__}(WrapperTensor, default="refuse")',
            )
        setattr(cls, DEFAULT, default)
    own = vars(cls).get("dequantize")
    if inspect.isfunction(own):
        setattr(cls, DENSE, own)
        cls.dequantize = _differentiable(own)  # type: ignore[method-assign]
        if _COERCE not in vars(cls):
            setattr(cls, _COERCE, _as_tangent)
    if getattr(cls, DEFAULT) == "dequantize" and not hasattr(cls, DENSE):
        raise ProtocolError(
            f"{cls.__name__} has no dequantize(), which its default needs",
            path=cls.__name__,
            expected="def dequantize(self) -> Tensor, made of the inner tensors",
            fix="add it, or choose default='refuse' or default='per_inner'",
        )


def _differentiable(dense: Callable[..., Any]) -> Callable[..., Any]:
    """``dequantize`` for callers: the gradient of the dense value is the gradient of the wrapper."""

    def dequantize(self: WrapperTensor) -> torch.Tensor:
        if self.requires_grad and torch.is_grad_enabled() and not _authors.below_autograd():
            value: torch.Tensor = torch_api.apply_function(Dequantize, self)
            return value
        plain: torch.Tensor = dense(self)
        return plain

    dequantize.__doc__ = dense.__doc__ or "The dense value; the gradient passes unchanged."
    dequantize.__qualname__, dequantize.__module__ = dense.__qualname__, dense.__module__
    return dequantize


class Dequantize(torch.autograd.Function):
    """wrapper -> dense value, with the identity as its derivative: a wrapper stands for its dense value."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> torch.Tensor:
        """The author's ``dequantize``; an inner tensor itself must not get the history that the result gets."""
        value: torch.Tensor = getattr(x, DENSE)()
        return value.detach() if any(value is v for v in getattr(x, VALUES)().values()) else value

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """The gradient as it is."""
        return grad


def _as_tangent(self: WrapperTensor, metadata: Any, expected_type: type | None = None) -> torch.Tensor | None:
    """torch.compile expected another tangent: a dense one can be given."""
    dense: torch.Tensor | None = getattr(self, DENSE)() if expected_type is torch.Tensor else None
    return dense


def _befriend(cls: type, other: type) -> bool:
    """May the call involve ``other``? A class that flattens, and is not ours, is foreign: it may try itself."""
    if hasattr(other, "__tensor_flatten__") and not issubclass(other, cls):
        return False
    cls.__dict__[RESOLVED].friends.add(other)
    return True


@never_compiled
def _dispatch_function(
    cls: type, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    kwargs = kwargs or {}
    for t in types:
        if not (issubclass(cls, t) or issubclass(t, cls)):
            return NotImplemented
    rule = torch_function(cls, func)
    if rule is not None:
        out = rule(func, *args, **kwargs)
        if out is not NotImplemented:
            return out
    return _authors.below_torch_function(func, args, kwargs)


def _add_families(cls: type, name: str, operations: tuple[Any, ...], inner: Any) -> None:
    _check_declared(cls, name)
    known = [f.name for f in fields_of(cls) if f.is_inner]
    chosen = None if inner is None else (inner,) if isinstance(inner, str) else tuple(inner)
    if chosen is not None and (not chosen or set(chosen) - set(known)):
        raise ProtocolError(
            f"{cls.__name__}.{name} is given inner={chosen}",
            path=f"{cls.__name__}.{name}",
            expected=f"some of {known}",
            fix="name inner tensors of the class, or leave inner out for all of them",
        )
    groups = [o for o in operations if isinstance(o, families.Group)]
    listed = operations_of(cls, name, *(o for o in operations if not isinstance(o, families.Group)))
    if name == "implements_views" and (wrong := [op for op in listed if op not in families.views]):
        raise ProtocolError(
            f"{wrong[0]} is no view of values",
            path=f"{cls.__name__}.{name}",
            fix=f"use {cls.__name__}.implements_per_inner({wrong[0]})",
        )
    if not groups and not listed:
        raise ProtocolError(f"{name}() was given nothing to implement", path=f"{cls.__name__}.{name}")
    for found in (*groups, *([listed] if listed else ())):
        add_family(cls, Family(found, inner=chosen))
