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

The class that comes out speaks PyTorch's protocol and nothing else: `__tensor_flatten__`,
`__tensor_unflatten__`, ``__torch_dispatch__``. The author's guide, docs/authoring.md, goes from
here to a trainable FP8 wrapper.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from typing_extensions import Self, dataclass_transform

from ..errors import ProtocolError, UnsupportedError
from ..state.current import call_kept, call_method, current
from ..subclass.context import same_context
from ..torch_api import authors as _authors
from ..torch_api.autograd import apply_function
from ..torch_api.dynamo import never_compiled
from ..torch_api.modes import no_modes
from ..torch_api.wrappers import disabled_torch_function
from . import sharding
from .defaults import DENSE, DENSE_DEFAULTS
from .fields import (
    DECLARED,
    Outer,
    build,
    construct,
    declaration,
    flatten_for,
    unflatten_for,
    values_of,
)
from .rules import (
    DEFAULTS,
    RULES,
    VERSION,
    Family,
    Group,
    Rules,
    add_family,
    add_operations,
    forget,
    overloads,
    resolve,
    rule_of,
    views,
)
from .saving import allow_loading, rebuild, stable_hash
from .weights import function_rules, requantizer

F = TypeVar("F", bound=Callable[..., Any])
_COERCE = "__coerce_same_metadata_as_tangent__"


@dataclass_transform(eq_default=False)
class WrapperTensor(torch.Tensor):
    """Base of declared wrappers. Annotate inner tensors as ``Tensor`` or ``Tensor | None``, context
    as anything else.

    Class arguments:
        default: what operations without a rule do: ``"refuse"`` (UnsupportedError; the default of
        the default),
            ``"dequantize"`` (compute on ``self.dequantize()``, the result is dense), ``"weight"``
            (the same, and what a
            weight must do: `weights`), or ``"per_inner"`` (run on each inner tensor, the result is
            wrapped again). Inherited.
        advice: what users are told to do instead where an operation is refused. Inherited.

    What the class gets: constructor, `__tensor_flatten__`, `__tensor_unflatten__`,
    ``__torch_dispatch__``, repr, pickle, ``torch.save`` and ``torch.load(weights_only=True)``,
    deepcopy, the hooks of torch.compile's caches and guards, and those of FSDP2. Whatever the class
    defines itself stays.

    What an author may add: ``outer_metadata`` (if the outside does not look like the first inner
    tensor), ``__post_init__`` (checks; runs for constructor calls, not for unflatten),
    ``dequantize``, ``requantize_``, and rules by `implements` and the families.

    Raises:
        ProtocolError: at class creation, for a declaration that cannot work; the message has the
            fix.
    """

    __torch_function__ = disabled_torch_function
    _wrapper_default: ClassVar[str] = "refuse"
    _wrapper_has_metadata: ClassVar[bool] = False
    _wrapper_advice: ClassVar[str | None] = None

    # ---- making the class
    def __init_subclass__(
        cls, *, default: str | None = None, advice: str | None = None, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        cls._wrapper_advice = cls._wrapper_advice if advice is None else advice
        declared = declaration(cls, _reserved())
        setattr(cls, DECLARED, declared)
        setattr(cls, RULES, Rules(cls))
        setattr(cls, VERSION, 0)
        cls._wrapper_has_metadata = "outer_metadata" in vars(cls) or cls._wrapper_has_metadata
        _set_default(cls, default)
        if not cls._wrapper_has_metadata and (
            not declared.inner or declared.inner[0] in declared.optional
        ):
            raise ProtocolError(
                f"{cls.__name__} has no first inner tensor to take its size and dtype from",
                path=cls.__name__,
                expected="a first inner tensor annotated as Tensor, or outer_metadata",
                fix="@classmethod\n            def outer_metadata(cls, fields): return "
                "Outer(size=..., dtype=...)",
            )
        made = {
            "__signature__": inspect.signature(declared.values),
            "__tensor_flatten__": flatten_for(declared),
            "__tensor_unflatten__": staticmethod(unflatten_for(cls)),
        }
        for name, value in made.items():
            if name not in vars(cls):
                setattr(cls, name, value)
        allow_loading(cls, declared)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """The constructor takes the fields."""
        made: Self = construct(cls, *args, **kwargs)
        return made

    def __post_init__(self) -> None:
        """Called at the end of the constructor: the place for checks. Unflatten does not call
        it."""

    @classmethod
    def outer_metadata(cls, fields: Any) -> Outer:
        """What the outer tensor looks like. Override it where that is not what the first inner
        tensor looks like.

        Args:
            fields: the fields of the tensor that is about to be made, as attributes.

        Sizes may be symbolic; compute with them, and do not branch on them. Sizes and strides that
        ``__tensor_unflatten__`` is given have precedence.
        """
        return Outer()

    # ---- rules
    @classmethod
    def implements(cls, *operations: Any) -> Callable[[F], F]:
        """Decorator: ``rule(func, *args, **kwargs)`` serves these ATen operations, for this class
        and its subclasses.

        Give overloads (``aten.mm.default``), packets (``aten.add``: all overloads) or groups
        (`authoring.views`, ...; a rule for one operation has precedence). A rule may return
        NotImplemented to leave a call to the default. What it
        returns is put right: in-place and out= operations return the written argument, and views
        share the storage of their base.

        Raises:
            ProtocolError: no ATen operation, or a composite one, which never arrives (see the
                guide).
        """

        def register(rule: F) -> F:
            add_operations(cls, operations, rule)
            return rule

        return register

    @classmethod
    def implements_torch_function(cls, *functions: Any) -> Callable[[F], F]:
        """Decorator: ``rule(func, *args, **kwargs)`` serves these torch functions, above autograd.

        This is where a ``torch.autograd.Function`` is attached. For functions without a rule
        nothing changes. A rule may return NotImplemented to let the function run as usual.
        """
        if cls.__torch_function__ is disabled_torch_function:
            cls.__torch_function__ = classmethod(_dispatch_function)

        def register(rule: F) -> F:
            vars(cls)[RULES].functions.update(dict.fromkeys(functions, rule))
            forget(cls)
            return rule

        return register

    @classmethod
    def implements_per_inner(cls, *operations: Any, inner: Sequence[str] | None = None) -> None:
        """Run these ATen operations, or groups of them, on each inner tensor and wrap the results
        again.

        Args:
            inner: the inner tensors that take part, if not all; a view shares the others with its
                base, a new tensor has copies of them, an in-place operation leaves them alone.
        """
        _add_families(cls, operations, inner)

    @classmethod
    def implements_views(cls, *operations: Any, inner: Sequence[str] | None = None) -> None:
        """`implements_per_inner` for these views, or for all views of values. Needs inner tensors
        shaped like self."""
        _add_families(cls, operations or (views,), inner)

    @classmethod
    # with all that it calls: after a graph break it runs while Dynamo looks for frames to compile
    @never_compiled
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        rules: Rules = cls.__dict__[RULES]
        _note_rules(cls)
        for t in types:
            if t not in rules.friends:
                if hasattr(t, "__tensor_flatten__") and not issubclass(t, cls):
                    return NotImplemented  # a wrapper of another class may try itself
                rules.friends[t] = True
        return (rules.resolved.get(func) or resolve(cls, func))(args, kwargs or {})

    # ---- values
    def replace(
        self,
        *,
        outer_size: Sequence[Any] | None = None,
        outer_stride: Sequence[Any] | None = None,
        **changes: Any,
    ) -> Self:
        """The same wrapper with some fields changed. Not differentiable; the result does not
        require grad.

        Args:
            outer_size, outer_stride: of the result, where ``outer_metadata`` cannot know them.
            changes: new values of fields.
        """
        values = values_of(self)
        if not changes.keys() <= values.keys():
            raise ProtocolError(
                f"{type(self).__name__} has no field "
                f"{', '.join(sorted(changes.keys() - values.keys()))}",
                path=type(self).__name__,
                expected=f"some of {list(values)}",
                fix="replace() takes fields, outer_size and outer_stride",
            )
        values.update(changes)
        new: Self = build(type(self), values, outer_size, outer_stride)
        return new

    def __repr__(self) -> str:  # type: ignore[override]
        with no_modes():  # printing is not part of a traced program
            parts = []
            # no comprehension: the caller asks for the text
            for name, value in values_of(self).items():
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
                code="wrapper-form",
                expected="a leaf of the autograd graph",
                fix="copy x.detach()",
            )
        values = values_of(self)
        values |= {n: copy.deepcopy(values[n], memo) for n in getattr(self, DECLARED).inner}
        new: Self = build(type(self), values, self.shape, self.stride())
        new.__dict__.update(
            {k: copy.deepcopy(v, memo) for k, v in vars(self).items() if k not in values}
        )
        new.requires_grad_(self.requires_grad)
        if self.grad is not None:
            new.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = new
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        values = values_of(self)
        extra = {k: v for k, v in vars(self).items() if k not in values}
        return rebuild, (
            type(self),
            values,
            tuple(self.shape),
            tuple(self.stride()),
            self.requires_grad,
            extra,
        )

    # ---- torch's hooks
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
        """FSDP2: what each rank sends. Derived where rows of the wrapper are rows of each inner
        tensor."""
        return sharding.pre_all_gather(self, mesh.size(), outer_size)

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[torch.Tensor, ...],
        metadata: Any,
        param_dtype: Any,
        *,
        out: Any = None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:
        """FSDP2: the whole parameter from what all ranks sent."""
        return sharding.post_all_gather(self, all_gather_outputs, metadata, out)


# ---- making the class
def _reserved() -> frozenset[str]:
    # torch 2.11 has Tensor.names
    names = {"self", "cls", "outer_size", "outer_stride", "requantize_", "names"}
    return frozenset(names) | frozenset(dir(torch.Tensor)) | frozenset(dir(WrapperTensor))


def _set_default(cls: type[WrapperTensor], default: str | None) -> None:
    if default is not None:
        if default not in DEFAULTS:
            raise ProtocolError(
                f"{default!r} is no default for operations",
                path=cls.__name__,
                expected=" or ".join(map(repr, DEFAULTS)),
                fix=f'class {cls.__name__}(WrapperTensor, default="refuse")',
            )
        cls._wrapper_default = default
    own = vars(cls).get("dequantize")
    if inspect.isfunction(own):
        setattr(cls, DENSE, own)
        cls.dequantize = _differentiable(own)  # type: ignore[method-assign]
        own.__qualname__ = f"{cls.__qualname__}.{DENSE}"  # under which a file finds it
        if _COERCE not in vars(cls):
            setattr(cls, _COERCE, _as_tangent)
    if default == "weight":
        vars(cls)[RULES].functions.update(function_rules(cls))
        cls.__torch_function__ = classmethod(_dispatch_function)
    if cls._wrapper_default == "weight" and not hasattr(cls, "requantize_"):
        if (write := requantizer(cls)) is not None:
            cls.requantize_ = write  # type: ignore[attr-defined]
    if cls._wrapper_default in DENSE_DEFAULTS and not hasattr(cls, DENSE):
        raise ProtocolError(
            f"{cls.__name__} has no dequantize(), which its default needs",
            path=cls.__name__,
            expected="def dequantize(self) -> Tensor, made of the inner tensors",
            fix="add it, or choose default='refuse' or default='per_inner'",
        )


def _differentiable(dense: Callable[..., Any]) -> Callable[..., Any]:
    """``dequantize`` for callers: the gradient of the dense value is the gradient of the
    wrapper."""

    def dequantize(self: WrapperTensor) -> torch.Tensor:
        if self.requires_grad and torch.is_grad_enabled() and not _authors.below_autograd():
            function = Transformed if _authors.transforms_active() else Dequantize
            value: torch.Tensor = apply_function(function, self)
            return value
        plain: torch.Tensor = call_kept(dense, self)
        return plain

    dequantize.__doc__ = dense.__doc__ or "The dense value; the gradient passes unchanged."
    dequantize.__qualname__, dequantize.__module__ = dense.__qualname__, dense.__module__
    return dequantize


class Dequantize(torch.autograd.Function):
    """wrapper -> dense value, with the identity as its derivative: a wrapper stands for its dense
    value."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> torch.Tensor:
        """The author's ``dequantize``; an inner tensor itself must not get the history that the
        result gets."""
        value: torch.Tensor = call_method(x, DENSE)
        return value.detach() if any(value is v for v in values_of(x).values()) else value

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """The gradient as it is."""
        return grad


class Transformed(Dequantize):
    """The same in the form that torch.func asks for. (It costs half as much again, for each
    call.)"""

    @staticmethod
    def forward(x: Any) -> torch.Tensor:  # type: ignore[override]
        """See `Dequantize`."""
        return Dequantize.forward(None, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is saved."""

    @staticmethod
    def jvp(ctx: Any, tangent: Any) -> torch.Tensor:
        """The tangent, as a dense tensor."""
        value: torch.Tensor = tangent.dequantize()
        return value

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any) -> Any:
        """Of a batch of wrappers, which has their dimensions and one more."""
        return apply_function(Transformed, x), in_dims[0]


def _as_tangent(
    self: WrapperTensor, metadata: Any, expected_type: type | None = None
) -> torch.Tensor | None:
    """torch.compile expected another tangent: a dense one can be given."""
    dense: torch.Tensor | None = call_method(self, DENSE) if expected_type is torch.Tensor else None
    return dense


def _note_rules(cls: type) -> None:
    """A region that is traced depends on the rules of a class, and on what else decides which one
    serves an operation."""
    rec = current()
    if rec is not None:
        for name in ("_wrapper_default", "_wrapper_has_metadata", VERSION):
            rec.attribute(cls, name)


@never_compiled
def _dispatch_function(
    cls: type,
    func: Any,
    types: Sequence[type],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    kwargs = kwargs or {}
    _note_rules(cls)
    for t in types:
        if not (issubclass(cls, t) or issubclass(t, cls)):
            return NotImplemented
    rule = rule_of(cls, "functions", func)
    if rule is not None:
        out = call_kept(rule, func, *args, **kwargs)
        if out is not NotImplemented:
            return out
    return _authors.below_torch_function(func, args, kwargs)


def _add_families(
    cls: type, operations: tuple[Any, ...], inner: str | Sequence[str] | None
) -> None:
    known = getattr(cls, DECLARED).inner
    chosen = (inner,) if isinstance(inner, str) else None if inner is None else tuple(inner)
    if not set(chosen or ()) <= set(known):
        raise ProtocolError(
            f"{cls.__name__} has no inner tensors {chosen}",
            path=cls.__name__,
            expected=f"inner= some of {known}",
        )
    for o in operations:
        add_family(
            cls, Family(o if isinstance(o, Group) else frozenset(overloads(cls, o)), inner=chosen)
        )
