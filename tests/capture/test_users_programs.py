"""Programs of a user's that once gave something else than eager mode: each is run plainly, and compiled."""

from __future__ import annotations

import collections
import gc
import typing
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.autograd.graph import register_multi_grad_hook

import subclass_trace as st

Tensor = torch.Tensor
Compile = Callable[[Any], Any]
library = torch.library.Library("users_programs", "FRAGMENT")
library.define("sine(Tensor x) -> Tensor")
library.impl("sine", lambda x: x.sin(), "CompositeExplicitAutograd")


def leaf(*values: float) -> Tensor:
    return torch.tensor(values or (1.0, 2.0, 3.0), requires_grad=True)


def hooks_of_several_leaves(compile: Compile, mode: Any = "all") -> Any:
    """The engine is asked which nodes it will run; one leaf is not behind the loss."""
    (a, b, unused), seen = (leaf(), leaf(), leaf()), list[int]()
    register_multi_grad_hook([a, unused, b], lambda grads: seen.append(len(grads)), mode=mode)
    step = compile(lambda x: (a * b * x).sum().backward())
    for _ in range(3):
        step(torch.ones(3))
    return seen, a.grad.tolist()


def hooks_of_the_first_leaf(compile: Compile) -> Any:
    return hooks_of_several_leaves(compile, "any")


def a_legacy_hook(compile: Compile) -> Any:
    """It is one on the last autograd node of a module."""
    model, x = nn.Sequential(nn.Tanh()), leaf()
    model[0].register_backward_hook(lambda module, grads, outputs: (grads[0] * 2,))
    compile(model)(x).sum().backward()
    return x.grad


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.mul_(3)


def a_backward_that_writes_its_tangent(compile: Compile) -> Any:
    x, w, tangent = leaf(), leaf(), torch.ones(3)
    compile(lambda x, w: Tripled.apply(x) + w)(x, w).backward(tangent)
    return x.grad, w.grad, tangent


def a_backward_that_writes_what_the_region_made(compile: Compile) -> Any:
    x, w, tangent = leaf(), leaf(), torch.ones(3)
    compile(lambda x, w: Tripled.apply(x) * w)(x, w).backward(tangent)
    return x.grad, w.grad, tangent


def a_kernel_without_a_derivative(compile: Compile) -> Any:
    x, call = leaf(), compile(lambda x: torch.ops.users_programs.sine(x * 2))
    call(x).sum().backward()
    with torch.no_grad():
        return x.grad, call(x)


def a_function_of_vjp_as_result(compile: Compile) -> Any:
    value, pull = compile(lambda x: torch.func.vjp(lambda y: y.sin() * y, x))(torch.ones(3))
    return value, pull(torch.ones(3))


def a_loop_that_counts(compile: Compile) -> Any:
    def loop(x: Tensor) -> Any:
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + i), (0, x))

    return compile(loop)(torch.ones(2))


def branches_that_write_what_they_make(compile: Compile) -> Any:
    def branch(x: Tensor, p: Tensor) -> Tensor:
        return torch.cond(p, lambda x: F.dropout(x, 0.5) * 2, lambda x: x.clone().add_(1), (x,))

    call, found = compile(branch), []
    for p in (True, False):
        torch.manual_seed(0)
        found += [call(torch.ones(6), torch.tensor(p)), torch.rand(1)]
    return found


def a_quantized_tensor_inside(compile: Compile) -> Any:
    call = compile(lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.quint8).dequantize())
    return call(torch.ones(3)), call(torch.ones(3)).dtype


class Batch(typing.TypedDict):
    x: Tensor


def a_typed_dict(compile: Compile) -> Any:
    made = compile(lambda x: Batch(x=x * 2))(torch.ones(2))
    return type(made), made["x"]


class Held:
    number = 2


def an_object_behind_a_weak_reference(compile: Compile) -> Any:
    held = Held()
    reference, x = weakref.ref(held), leaf()
    call = compile(lambda x: x * (100 if reference() is None else reference().number))
    found = [call(x), call(x)]
    del held
    gc.collect()
    return [*found, call(x), reference()]


class Counted:
    number = 2

    def count(self) -> int:
        return self.number


def weak_containers(compile: Compile) -> Any:
    held, x = Counted(), leaf()
    method, members = weakref.WeakMethod(held.count), weakref.WeakSet([held])
    keys, values = weakref.WeakKeyDictionary({held: 3}), weakref.WeakValueDictionary({"a": held})
    calls = [
        compile(lambda x: x * (100 if method() is None else method()())),
        compile(lambda x: x * (len(members) + sum(m.number for m in members))),
        compile(lambda x: x * (len(keys) + sum(keys.values()))),
        compile(lambda x: x * (values["a"].number if "a" in values else 50)),
    ]
    found = [call(x) for call in calls]
    del held
    gc.collect()
    return found, [call(x) for call in calls], method(), len(members)


class ByClass(torch.autograd.Function):
    number = 2

    @classmethod
    def forward(cls, ctx: Any, x: Tensor, *, by: float = 1.0) -> Tensor:
        ctx.by = by
        return x * cls.number

    @classmethod
    def backward(cls, ctx: Any, g: Tensor) -> Tensor:
        return g * cls.number * ctx.by


def class_methods_of_a_function(compile: Compile) -> Any:
    call, found = compile(lambda x: ByClass.apply(x) + 1), []
    for ByClass.number in (2, 3):
        x = leaf()
        call(x).sum().backward()
        found.append(x.grad)
    return found


def anomalies(compile: Compile) -> Any:
    """Of a specialization that was made without the mode, too."""
    w, found = leaf(0.0, 1.0), []
    steps = [
        compile(lambda: (w.sqrt() * 0).sum().backward()),
        compile(lambda x: torch.autograd.grad((w.sqrt() * 0).sum(), w)[0] * x),
    ]
    for step, *inputs in [(steps[0],), (steps[1], torch.ones(2))]:
        for checks in (False, True, False):
            with torch.autograd.set_detect_anomaly(checks):
                try:
                    found.append(str(step(*inputs)))
                except RuntimeError as error:
                    found.append(str(error)[:60])
    return found


class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.w = w
        return x * w.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(x * ctx.w, g)
        return x.grad, None


def a_backward_inside_of_a_backward(compile: Compile) -> Any:
    x, w = leaf(), leaf()
    call = compile(lambda x: Recomputed.apply(x, w))
    for _ in range(2):
        call(x).sum().backward()
    return x.grad, w.grad


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sets the gradient": lambda u, g: setattr(u, "grad", g * 2),
    "drops the gradient": lambda u, g: setattr(u, "grad", None),
    "adds to the gradient": lambda u, g: None if u.grad is None else u.grad.add_(g),
    "sets the data": lambda u, g: setattr(u, "data", g * 2),
    "sets the flag": lambda u, g: u.requires_grad_(False),
    "calls backward": lambda u, g: torch.enable_grad()(lambda: (u * u).sum().backward())(),
}


def hooks_that_write(compile: Compile, whole: bool = False) -> Any:
    found = []
    for write in WRITES.values():
        x, u = leaf(), leaf(4.0, 5.0, 6.0)

        def hooked(x: Tensor, u: Tensor = u, write: Any = write) -> Tensor:
            y = x * 2
            y.register_hook(lambda g: (write(u, g), None)[1])
            y = y.sin().sum()
            if whole:
                y.backward()
            return y.detach() if whole else y

        call = compile(hooked)
        for _ in range(3):
            out = call(x)
            if not whole:
                out.backward()
        found.append([x.grad, u.data, u.grad, u.requires_grad])
    return found


def tensors_over_arrays(compile: Compile) -> Any:
    array, other = np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.zeros(3)

    def written(x: Tensor) -> Tensor:
        return torch.from_numpy(other).add_(1) * x

    call, read = compile(written), compile(lambda x: torch.from_numpy(array) * 1 + x)
    out = [call(torch.ones(3)) for _ in range(2)], read(torch.ones(3))
    return (
        *out,
        out[-1].stride(),
        other.tolist(),
        compile(lambda x: torch.from_numpy(other))(0).data_ptr() == other.ctypes.data,
    )


class Adding(type):
    def __setattr__(cls, name: str, value: Any) -> None:
        type.__setattr__(cls, name, value + 100)


def attributes_that_a_metaclass_sets(compile: Compile) -> Any:
    class Set(metaclass=Adding):
        pass

    def step(x: Tensor) -> Tensor:
        Set.value = 1
        return x * Set.value

    call = compile(step)
    return [call(torch.ones(2)) for _ in range(2)], Set.value


def a_tensor_class_that_calls_up(compile: Compile) -> Any:
    class Up(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = super().__torch_function__(func, types, args, kwargs or {})
            return out * 2 if func is torch.sin else out

    call = compile(lambda x: torch.sin(x) + 1)
    return [torch.Tensor(call(torch.ones(3).as_subclass(Up))) for _ in range(2)]


def a_hook_that_drops_what_other_leaves_have(compile: Compile) -> Any:
    """Leaves get their gradients in the engine's order."""
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), list[Any]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def hook(gradient: Tensor) -> None:
        seen.append([p.grad is None for p in model.parameters()])
        optimizer.zero_grad()

    model[0].weight.register_hook(hook)

    def step(x: Tensor) -> Any:
        model(x).sum().backward()
        optimizer.step()
        return [None if p.grad is None else p.grad.clone() for p in model.parameters()]

    call = compile(step)
    return [call(torch.full((2, 3), float(k))) for k in range(1, 4)], seen, [*model.parameters()]


def hooks_of_a_step_that_write(compile: Compile) -> Any:
    return hooks_that_write(compile, whole=True)


PROGRAMS = [f for f in vars().values() if callable(f) and getattr(f, "__annotations__", {}).get("compile") == "Compile"]


def plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return (value.dtype, value.tolist()) if isinstance(value, Tensor) else value


@pytest.mark.parametrize("frontend", ["trace", "auto"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore")
def test_as_in_eager(program: Callable[[Compile], Any], frontend: Any) -> None:
    got = program(lambda f: st.compile(f, frontend=frontend, backend="eager"))
    assert plain(got) == plain(program(lambda f: f))


@pytest.mark.filterwarnings("ignore")
def test_an_attribute_that_a_class_of_c_keeps() -> None:
    table: collections.defaultdict[str, Any] = collections.defaultdict(int)

    def f(x: Tensor) -> Tensor:
        table.default_factory = list
        return x * 2

    with pytest.raises(st.SideEffectError):
        st.compile(f, frontend="trace", backend="eager")(torch.ones(2))
    assert table.default_factory is int
    assert st.compile(f, frontend="auto", backend="eager")(torch.ones(2)).tolist() == [2, 2] and table["made"] == []


def test_they_are_all_there() -> None:
    assert len(PROGRAMS) > 10
