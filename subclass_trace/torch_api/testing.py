"""The private torch that the conformance kit needs, as helpers whose source can be printed into a
program.

So each of them imports what it needs inside of itself, and uses only torch and other helpers of
this file.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch


def load_dynamo() -> None:
    """Import it now."""
    import_module("torch._dynamo")


def faking() -> Any:
    """A mode in which every new tensor is fake, with static sizes (sizes of jagged tensors are
    symbols)."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=False, static_shapes=True)


def faking_symbolic() -> Any:
    """A mode whose fake tensors have symbolic sizes."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=False)


def faked(mode: Any, x: torch.Tensor, dynamic: bool = False) -> Any:
    """The fake twin of a tensor or wrapper; with ``dynamic``, all its sizes are symbols."""
    if not dynamic:
        return mode.from_tensor(x, static_shapes=True)
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        StatelessSymbolicContext,
        SubclassSymbolicContext,
    )

    def context(t: Any) -> Any:
        dims = [DimDynamic.DYNAMIC] * t.dim()
        if not hasattr(type(t), "__tensor_flatten__"):
            return StatelessSymbolicContext(dynamic_sizes=dims)
        inner = {
            n: context(v)
            for n in t.__tensor_flatten__()[0]
            if isinstance(v := getattr(t, n), torch.Tensor)
        }
        unknown: Any = None
        return SubclassSymbolicContext(
            dynamic_sizes=dims, inner_contexts=inner, tensor_source=unknown, view_base_context=None
        )

    return mode.from_tensor(x, symbolic_context=context(x))


def specialised(mode: Any) -> list[str]:
    """The symbols of a fake mode that have turned into numbers."""
    return sorted(str(k) for k, v in mode.shape_env.replacements.items() if v.is_number)


def keeping_symbols() -> Any:
    """A mode in which the operations of torch that turn symbolic sizes into numbers do not: complex
    and polar."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class KeepingSymbols(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            aten, plain = (
                torch.ops.aten,
                not any(hasattr(type(a), "__tensor_flatten__") for a in args),
            )
            if plain and func is aten.polar.default:
                args = (args[0] * args[1].cos(), args[0] * args[1].sin())
                func = aten.complex.default
            if plain and func is aten.complex.default:
                parts: Any = torch.broadcast_tensors
                return torch.view_as_complex(torch.stack(parts(*args), -1))
            return func(*args, **(kwargs or {}))

    return KeepingSymbols()  # type: ignore[no-untyped-call]


def numbers(size: Any) -> list[Any]:
    """The numbers behind sizes that may be symbols; "jagged" for a ragged one."""
    found: list[Any] = []
    for n in size:
        ragged = isinstance(n, torch.SymInt) and (
            n.node.is_nested_int() or not hasattr(n.node, "expr")
        )
        hint = None if ragged or not isinstance(n, torch.SymInt) else n.node.hint
        ragged = ragged or (isinstance(hint, torch.SymInt) or "j" in str(hint))
        # int(n) would make it a number
        found.append("jagged" if ragged else int(n if hint is None else hint))
    return found


def is_fake_tensor(x: object) -> bool:
    """Is this a dense fake tensor?"""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(x, FakeTensor)


def is_opaque_object(value: object) -> bool:
    """Does torch let a wrapper list this object besides its inner tensors (a DeviceMesh, from torch
    2.12 on)?"""
    import torch._library.opaque_object as objects

    # until torch 2.14
    known: Any = getattr(objects, "is_custom_class", None) or objects.is_opaque_type
    return bool(known(type(value)))


class Pair(torch.Tensor):
    """A sound wrapper of two tensors of equal sizes: every operation runs on both."""

    a: Any
    b: Any
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: Any, a: Any, b: Any, size: Any = None, stride: Any = None) -> Any:
        how = {
            "strides": stride or a.stride(),
            "dtype": a.dtype,
            "device": a.device,
            "storage_offset": a.storage_offset(),
        }
        self = torch.Tensor._make_wrapper_subclass(cls, size or a.shape, **how)
        self.a, self.b = a, b
        return self

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pair({self.a!r}, {self.b!r})"

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Pair(inner["a"], inner["b"], size, stride)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        from torch.utils import _python_dispatch
        from torch.utils._pytree import tree_map_only

        correct: Any = _python_dispatch.return_and_correct_aliasing
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") and not issubclass(t, Pair) for t in types):
            return NotImplemented

        def both(a: Any, b: Any) -> Any:
            if isinstance(a, torch.Tensor):
                return Pair(a, b)
            return type(a)(map(both, a, b)) if isinstance(a, (list, tuple)) else a

        def half(name: str) -> Any:
            def value(t: Any) -> Any:
                inner = getattr(t, name)
                if not (inner.is_conj() or inner.is_neg()):
                    return inner
                if func._schema.is_mutable:
                    raise NotImplementedError(f"{func} of lazy bits")
                return inner if func.is_view else inner.resolve_conj().resolve_neg()

            return value

        outs = [
            func(*tree_map_only(Pair, half(n), args), **tree_map_only(Pair, half(n), kwargs))
            for n in ("a", "b")
        ]
        return correct(func, args, kwargs, both(*outs))


class Witness(torch.Tensor):
    """A wrapper that nobody knows. It writes down the types of the tensors in each call that it is
    asked to take, and leaves it to others.
    """

    elem: Any
    seen: Any

    @staticmethod
    def __new__(cls: Any, elem: Any) -> Any:
        self = torch.Tensor._make_wrapper_subclass(
            cls, elem.shape, dtype=elem.dtype, device=elem.device
        )
        self.elem, self.seen = elem, []
        return self

    def __repr__(self) -> str:  # type: ignore[override]
        return "Witness()"

    def __tensor_flatten__(self) -> Any:
        return ["elem"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Witness(inner["elem"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        from torch.utils._pytree import tree_leaves

        tensors = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        witness = next(a for a in tensors if isinstance(a, Witness))
        witness.seen.append([type(a) for a in tensors])
        return NotImplemented


def outer_storage(x: torch.Tensor) -> int:
    """The identity of the storage that torch thinks a tensor has (that of a wrapper is empty, but
    it is an identity)."""
    return int(x.untyped_storage()._cdata)
