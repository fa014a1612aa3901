"""ST1xx: flatten and unflatten. What is taken apart must go together again, to the same thing."""

from __future__ import annotations

from ..rules import Severity, rule
from ..script import NotApplicable, Script


@rule("ST101", "flattening and unflattening gives the same tensor")
def round_trips(t: Script) -> None:
    """Compilers, fake tensors, checkpointing and FSDP take a wrapper apart with
    `__tensor_flatten__` and build it again with `__tensor_unflatten__`. What comes back must have
    the same type, sizes, strides, dtype, device, layout, storage offset and context, or the program
    that was traced is not the one that was written.

    Everything that makes two instances behave differently, and is no tensor, is context: also the
    numbers and texts that
    the constructor took. Autograd history is none of it: who rebuilds a wrapper sets
    `requires_grad` himself, so unflatten must return a leaf, which requires grad only if the
    context says so.

    Passes: `return ["codes"], (self.scale, self.axis)`, and unflatten hands all of them to the
    constructor.
    Fails: `return ["codes"], (self.scale,)`, where the constructor takes `axis=0` as well.
    """
    t.wrapper("x")
    t.run("y = rebuild(x)", "flatten and unflatten must not raise")
    t.require("context = x.__tensor_flatten__()[1]")
    t.expect("meta(y)", "meta(x)", "the rebuilt wrapper must look like the one that was flattened")
    t.expect(
        "kept_arguments(y) == kept_arguments(x)",
        "True",
        "a rebuilt one has the numbers that its constructor took",
    )
    if t.attempt("assert same_metadata(x.__tensor_flatten__()[1], context, type(x))"):
        equal = "same_metadata(y.__tensor_flatten__()[1], context, type(x))"
        t.expect(equal, "True", "a rebuilt one has an equal context")
    t.expect(
        "(y.requires_grad, y.is_leaf)", "(False, True)", "a rebuilt plain value has no history"
    )
    if t.value("x.is_floating_point()") and t.attempt("x.requires_grad_()"):
        t.require("y = rebuild(x, torch.detach)")
        t.expect("y.is_leaf", "True", "a rebuilt leaf is a leaf")


@rule("ST102", "flattening names the same attributes, and they hold the same tensors, each time")
def stable_attributes(t: Script) -> None:
    """The flat list of inner tensors has no names on it: the n-th tensor belongs to the n-th
    attribute. So the list must have the same names in the same order for the same instance and for
    a rebuilt one, without duplicates (not the order of a set). An optional inner tensor that is
    absent is left out; it must be absent after the round trip too.

    The names are read with `getattr`, more than once, and each must give the tensor that the
    wrapper computes with, not a
    copy of it or a view made anew: compilers write mutations back into it.

    Passes: `return ["codes", "scale"], None`.
    Fails: `return list({"codes", "scale"}), None`, or a property `codes` that returns
    `self._codes.view(...)`.
    """
    t.wrapper("x")
    t.require("names = x.__tensor_flatten__()[0]")
    t.expect(
        "list(x.__tensor_flatten__()[0])", "list(names)", "two calls must name the same attributes"
    )
    t.expect("len(set(names))", "len(names)", "no attribute may be named twice")
    t.require("first, second = inners(x), inners(x)")
    t.expect(
        "[n for n in first if first[n] is not second.get(n)]",
        "[]",
        "getattr must give the same object twice",
    )
    if t.attempt("y = rebuild(x)"):
        t.expect(
            "list(y.__tensor_flatten__()[0])",
            "list(names)",
            "a rebuilt one must name the same attributes",
        )


@rule("ST103", "unflattening stores the inner tensors that it is given", severity=Severity.WARNING)
def inner_identity(t: Script) -> None:
    """A compiled graph returns dense tensors, and unflatten wraps them. If it stores copies, views
    and in-place writes through the wrapper no longer reach the memory that the graph (or the
    caller) holds, and every call pays the copy. Conversions belong into the constructor that users
    call, not into unflatten.

    Passes: `return cls(inner["codes"], inner["scale"])`, where the constructor stores what it gets.
    Fails: `return cls.from_dense(inner["codes"])`, or `self.codes = codes.contiguous().clone()` in
    the constructor.
    """
    t.wrapper("x")
    t.require("before = inners(x)")
    t.only_if(
        "all(v is before[n] for n, v in inners(x).items())",
        "its inner tensors are new at each look",
    )
    t.require(
        "y = type(x).__tensor_unflatten__(before, x.__tensor_flatten__()[1], x.size(), x.stride())"
    )
    t.require("after = inners(y)")
    t.expect(
        "[n for n in before if after.get(n) is not before[n]]",
        "[]",
        "each inner tensor must be the very object",
    )


@rule("ST106", "the context is equal to its own copy")
def context_comparable(t: Script) -> None:
    """Dynamo keeps a deep copy of the context as a guard and compares it with `==` in each call. A
    context that cannot be copied, whose `==` raises or gives no bool (arrays), or that is not equal
    to its copy (NaN, objects compared by identity) fails with "Guard failed on the same frame it
    was created", or recompiles each time. Classes may define the class method
    `__metadata_guard__(cls, original, other)` instead.

    Passes: a tuple of numbers and texts, or a frozen dataclass.
    Fails: an object without `__eq__`, a numpy array, `float("nan")`.
    """
    t.wrapper("x")
    t.require("import copy")
    t.require("context = x.__tensor_flatten__()[1]")
    t.run("twin = copy.deepcopy(context)", "a context must be deepcopy-able")
    t.expect(
        "same_metadata(context, twin, type(x))",
        "True",
        "a context must be equal to its own deep copy",
    )


@rule("ST115", "equal contexts have equal hashes")
def context_hash(t: Script) -> None:
    """Caches of compiled graphs look contexts up. One that is equal to its copy and has another
    hash (that of its identity)
    is found by nobody: each call compiles anew, and tables grow. A context that cannot be hashed is
    sound.

    Passes: a frozen dataclass, a tuple of numbers.
    Fails: `__eq__` by value and `__hash__ = object.__hash__`.
    """
    t.wrapper("x")
    t.require("import copy")
    t.require("context = x.__tensor_flatten__()[1]")
    t.require("twin = copy.deepcopy(context)")
    t.require("assert context == twin", "its context is not equal to its copy")
    t.require("number = hash(context)", "its context cannot be hashed")
    t.expect("hash(twin)", "number", "a context that is equal to another has its hash")


@rule("ST107", "every tensor of the instance is an inner tensor")
def complete_attributes(t: Script) -> None:
    """A tensor in the context, or in an attribute that flatten does not name, is invisible to the
    compiler: its values are frozen into the trace, it is not moved to another device with the rest,
    gets no gradient, and stays alive in the guards.

    Passes: `return ["codes", "scale"], None`.
    Fails: `return ["codes"], self.scale`, where the scale is a tensor.
    """
    t.wrapper("x")
    t.require("context = x.__tensor_flatten__()[1]")
    t.expect("tensors_within(context)", "[]", "tensors belong into the list of inner tensors")
    t.require("named = {id(v) for v in inners(x).values()}")
    unnamed = (
        "[n for n, v in instance_state(x).items() if isinstance(v, torch.Tensor) and id(v) "
        "not in named]"
    )
    t.expect(unnamed, "[]", "each tensor of the instance must be named by flatten")


@rule("ST109", "inner tensors do not require grad")
def inner_without_grad(t: Script) -> None:
    """Autograd works on the wrapper; `__torch_dispatch__` runs below it, on inner tensors that are
    plain data. An inner tensor that requires grad starts a second graph that nobody walks: its
    `grad` stays empty, memory leaks, and compilers refuse or detach it.

    Passes: `self.codes = codes.detach()`.
    Fails: `self.codes = torch.nn.Parameter(codes)`.
    """
    t.wrapper("x", floating=True)
    flags = "[n for n, v in inners({0}).items() if getattr(v, 'requires_grad', False)]"
    t.expect(flags.format("x"), "[]", "inner tensors are data")
    if t.attempt("x.requires_grad_()"):
        t.expect(flags.format("x"), "[]", "requires_grad_() is about the wrapper alone")
        if t.attempt("y = x * 2") and t.value("hasattr(type(y), '__tensor_flatten__')"):
            t.expect(flags.format("y"), "[]", "results of operations hold data")


@rule(
    "ST110",
    "building from tensors that require grad does not hide them inside",
    severity=Severity.WARNING,
)
def built_from_grad(t: Script) -> None:
    """A constructor is not differentiable by itself. Given a tensor that requires grad it may
    refuse, detach, or be an `autograd.Function` whose result requires grad. Storing the tensor as
    it is looks fine, and loses the gradient. (Item 1 of PyTorch issue 162964.)

    Passes: an `autograd.Function` whose forward returns the wrapper, or `raise ValueError` for
    `codes.requires_grad`.
    Fails: `cls(x, x * 2)` with an `x` that requires grad, stored as it is.
    """
    t.wrapper("x", floating=True)
    try:
        t.wrapper("y", around="({0}).requires_grad_()")
    except NotApplicable:
        return t.passed()  # refusing is a sound answer
    t.expect(
        "[n for n, v in inners(y).items() if getattr(v, 'requires_grad', False) and y.grad_fn is "
        "None]",
        "[]",
        "an inner tensor may require grad only if the wrapper passes the gradient on",
    )
    return None


@rule("ST111", "unflattening honours the outer size and stride", severity=Severity.WARNING)
def honours_outer(t: Script) -> None:
    """With dynamic shapes one traced program serves many sizes: the context stays that of the
    trace, and inner tensors, outer size and outer stride are those of the call. So sizes must be
    taken from the arguments (or from the inner tensors), never from the context.

    Passes: `_make_wrapper_subclass(cls, outer_size, strides=outer_stride, ...)` in unflatten.
    Fails: `torch.Size(context["shape"])` in unflatten.
    """
    t.wrapper("x")
    t.larger("y")
    t.require("context = x.__tensor_flatten__()[1]")
    t.require("z = rebuild(y)")
    t.only_if(
        "meta(z) == meta(y) and same_metadata(context, context, type(y))",
        "it does not survive the round trip",
    )
    t.only_if("list(inners(x)) == list(inners(y))", "other sizes have other inner tensors")
    t.run(
        "z = type(y).__tensor_unflatten__(inners(y), context, y.size(), y.stride())",
        "unflatten must accept other sizes than those of the time of flattening",
    )
    t.expect(
        "(z.size(), z.stride())",
        "(y.size(), y.stride())",
        "sizes and strides are those of the call",
    )
