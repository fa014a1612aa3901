"""What the sweep alone judges: each call of the table, on small instances, against the dense
program.

The functions are empty: the findings are those of `sweep.sweep_of`, by the id of the rule.
"""

from __future__ import annotations

from ..rules import Cost, Severity, rule
from ..script import Script


@rule("ST113", "an operation leaves names and context of its operands alone", cost=Cost.SWEEP)
def flatten_is_stable(t: Script) -> None:
    """Compilers flatten a wrapper once, and take its inner tensors by name from then on. An
    operation that adds a cached inner tensor, renames one, or counts in the context makes another
    tensor of its operand, while graphs and guards are about the first one.

    Passes: `__tensor_flatten__` returns `["codes", "scale"], self.block` whatever was called
    before.
    Fails: `mul` sets `x.cache = ...`, and flatten lists "cache" once it is there.
    """


@rule("ST112", "contexts that differ are told apart", cost=Cost.SWEEP)
def contexts_differ(t: Script) -> None:
    """Guards compare contexts by `==` (or by `__metadata_guard__`). Two contexts that give the same
    inner tensors another
    value must not be equal: a program that was compiled for the one would serve the other,
    silently.

    Passes: the context is the tuple `(self.scale, self.axis)`.
    Fails: it is an object whose `__eq__` compares the axis alone, and the scale counts.
    """


@rule("ST114", "metadata is not shared between instances", cost=Cost.SWEEP)
def metadata_is_own(t: Script) -> None:
    """What an instance knows beside its tensors must be its own. A dict or list of the class, or
    one that is handed from operand to result and then changed, makes one instance's scale the scale
    of all: the last one that was built wins.

    Passes: `self.meta = {"scale": scale}` in the constructor.
    Fails: `meta = {}` in the class body, and `self.meta["scale"] = scale` in the constructor.
    """


@rule("ST306", "under no_grad an operation gives what it gives with gradients", cost=Cost.SWEEP)
def no_grad_is_grad(t: Script) -> None:
    """`torch.no_grad()`, `requires_grad` and plain tensors are the same computation. A class that
    asks for `torch.is_grad_enabled()` or `x.requires_grad`, or that works above autograd for one of
    the two only, trains one model and serves another.

    Passes: `__torch_dispatch__` computes, whatever the mode.
    Fails: `__torch_function__` computes `F.linear` in low precision if gradients are off, and
    densely with them.
    """


@rule("ST311", "the same call twice gives the same", cost=Cost.SWEEP)
def twice(t: Script) -> None:
    """Two calls on the same operands give the same result, unless the operation draws random
    numbers. Otherwise the class keeps state outside of its instances (a counter, a cache), reads
    memory that nobody has written, or rounds by chance. For those that draw by design say
    `random=True`: each call is seeded then.

    Passes: `x * 2` depends on x and 2.
    Fails: `mul` looks up the scale of the call before.
    """


@rule(
    "ST312",
    "results keep the type that their like have",
    severity=Severity.WARNING,
    cost=Cost.SWEEP,
)
def types_agree(t: Script) -> None:
    """Where nearly all operations of a kind give an instance of the class, one that gives a dense
    tensor has lost the type: what the class knows (a scale, a mask, a placement) ends there,
    without an error.

    Passes: every pointwise operation wraps its result.
    Fails: `abs` returns `func(x.data_)`, as it is.
    """


@rule("ST313", "results have the sizes and the dtype of the dense program", cost=Cost.SWEEP)
def metadata_of_results(t: Script) -> None:
    """The outside of a result is what callers, autograd and compilers see: its shape and dtype are
    those that the operation gives on dense tensors, and its dense value has them as well. That
    includes type promotion, `keepdim=` and `dtype=`.

    Passes: `x > 0` is bool, `x.sum(dtype=torch.float64)` float64.
    Fails: the constructor takes the dtype of the scale, whatever the operation gave.
    """


@rule("ST314", "keywords count", cost=Cost.SWEEP)
def keywords(t: Script) -> None:
    """`alpha=`, `beta=`, `keepdim=`, `dtype=`, `rounding_mode=`, `memory_format=` change what an
    operation does. A class whose rule has no place for them, or that forgets to hand them on, gives
    the value of another call. Optimizers use `alpha=` in each step.

    Passes: `def add(func, x, y, *, alpha=1)` that scales y.
    Fails: `func(x.data_, y.data_)`, without `**kwargs`.
    """


@rule("ST315", "the order of operands counts", cost=Cost.SWEEP)
def order(t: Script) -> None:
    """`2 - x` is not `x - 2`, and `p @ x` not `x @ p`. With a dense tensor or a number in front,
    the wrapper is the second argument; a class that looks for itself first and computes with what
    is left exchanges the two.

    Passes: each argument is unwrapped where it stands.
    Fails: `x, other = (a, b) if isinstance(a, cls) else (b, a)`, for `sub`.
    """


@rule("ST316", "two operands with different contexts give the value of both", cost=Cost.SWEEP)
def two_contexts(t: Script) -> None:
    """`x + y` of two wrappers with different scales (axes, offsets) is the sum of their values. A
    class that takes the context of the first one for both is right in every test with one scale.
    Refusing is sound.

    Passes: `x.dequantize() + y.dequantize()`, or an error where the scales differ.
    Fails: `cls(x.codes + y.codes, x.scale)`.
    """


@rule("ST317", "what the class means to do does not fail by accident", cost=Cost.SWEEP)
def accidents(t: Script) -> None:
    """Refusing an operation is sound: say so with `NotImplemented` or an error that is raised. An
    AttributeError, a RecursionError or an error of a kernel, out of the class's own code, for a
    call that works on dense tensors, is an
    accident: the class names the operation, does it with other arguments, or does nearly all there
    are.

    Passes: `raise NotImplementedError(f"{func} needs two MyTensors")`.
    Fails: `func(a.codes, b.codes)` where b may be a dense tensor.
    """


@rule("ST318", "what it is used for works", cost=Cost.SWEEP)
def used_for(t: Script) -> None:
    """A class that was declared a `weight`, `parameter`, `activation` or `input` (`use=`, `--use`)
    does what a model cannot do
    without: a weight `F.linear`, `detach`, deepcopy, a state dict; a parameter an optimizer's step
    as well.

    Passes: `use="weight"`, and `F.linear(x, w)` works.
    Fails: `use="weight"`, and `F.linear` raises, because `aten.t` has no rule.
    """


@rule("ST319", "an operation leaves torch's global state alone", cost=Cost.SWEEP)
def global_state(t: Script) -> None:
    """The default dtype, the grad mode, autocast, determinism and the number of threads belong to
    the program. What an operation changes for itself it must put back, by a `with` statement, or
    everything after it computes otherwise.

    Passes: `with torch.no_grad(): ...` in the class.
    Fails: `torch.set_grad_enabled(False)` in `__torch_dispatch__`.
    """


@rule("ST320", "the programs that were handed in work", cost=Cost.SWEEP)
def programs(t: Script) -> None:
    """The calls that the author has named (`programs=`, `--programs`) must work, and give the value
    of the dense program.

    Passes: `programs=["x @ x.t()"]`, and it does.
    Fails: it raises, or gives another value.
    """


@rule("ST332", "a view shows the part that was asked for", cost=Cost.SWEEP)
def right_part(t: Script) -> None:
    """Slices with an offset, a step or a negative bound, `select`, the second chunk of `split`, and
    `unbind` are cut out of each inner tensor that has those elements. Often the first part is
    right, and the scales, the mask or the packed bytes of the others are those of the first.

    Passes: `x[1:]` has `codes[1:]` and `scale[1:]`.
    Fails: it has `codes[1:]` and the scale of the first rows.
    """


@rule("ST333", "what is missing does not count", cost=Cost.SWEEP)
def missing_elements(t: Script) -> None:
    """A class with a mask or padding (`valid=`) gives results of which the meaningful elements
    depend on meaningful ones alone. The check writes other numbers where nothing is meant, and
    calls again.

    Passes: the mask of `x + y` is `x.mask & y.mask`.
    Fails: it is the mask of x.
    """


@rule("ST403", "gradients of every argument are those of the dense program", cost=Cost.SWEEP)
def every_argument(t: Script) -> None:
    """A formula of one's own (`torch.autograd.Function`) returns a gradient for each argument. The
    one for the second wrapper, the bias or the dense operand is easily forgotten, transposed, or
    that of another argument.

    Passes: `return grad @ w, grad.t() @ x, grad.sum(0)`.
    Fails: `return grad @ w, None, None`, where the weight is trained.
    """


@rule("ST404", "a gradient is of the class, or dense", cost=Cost.SWEEP)
def type_of_gradients(t: Script) -> None:
    """Autograd checks sizes and dtype of a gradient, not its class. Optimizers compute with the
    parameter and its gradient: a gradient of a third class fails there, or is computed with as if
    it were dense.

    Passes: the gradient of a MyTensor is a MyTensor or a dense tensor.
    Fails: the backward wraps it into the class of the saved activation.
    """


@rule("ST517", "load_state_dict works when parameters are swapped", cost=Cost.SWEEP)
def swaps(t: Script) -> None:
    """`torch.__future__.set_swap_module_params_on_conversion(True)` makes `module.to` and
    `load_state_dict` exchange parameters (`torch.utils.swap_tensors`), which is the only way for
    most wrappers. The class must take the slots and attributes of the other instance, and its
    `copy_` or `module_load` must give the value that was loaded.

    Passes: a class without `__slots__` of its own, whose `module_load` is torch's.
    Fails: `module_load` returns the old value.
    """
