"""ST8xx: life in a process: hashing, threads, repr, and being let go."""

from __future__ import annotations

from ..rules import Severity, rule
from ..script import Script


@rule(
    "ST801",
    "the hash for caches depends on metadata alone",
    severity=Severity.WARNING,
    right="""
    def _stable_hash_for_caching(self):
        return f"Scaled {self.__tensor_flatten__()[1]} {self.data.dtype} {tuple(self.data.shape)}"
    """,
)
def cache_hash(t: Script) -> None:
    """The caches of torch.compile hash wrappers by `_stable_hash_for_caching()`, or, if the class has no such method, by
    pickling sizes and context. The hash must be the same for a rebuilt instance, and in the next process: no `id`, no
    `hash` of strings, no order of sets. It must be another one for other sizes.
    """
    t.wrapper("x")
    t.wrapper("y")
    t.require("assert list(x.__tensor_flatten__()[0]) == list(x.__tensor_flatten__()[0])", "its attributes change")
    t.require("z = rebuild(x)")
    t.require("assert meta(z) == meta(x) and z.requires_grad == x.requires_grad", "it cannot be rebuilt")
    t.require(
        "assert same_metadata(z.__tensor_flatten__()[1], x.__tensor_flatten__()[1], type(x))", "it loses its context"
    )
    t.require("import pickle\npickle.dumps(x.__tensor_flatten__()[1])", "its context cannot be pickled")
    t.run("key = cache_key(x)", "it can be hashed for caches")
    t.expect("isinstance(key, str)", "True", "a hash for caches is text")
    t.expect("cache_key(z)", "key", "a rebuilt instance has the same hash")
    if t.value("y.shape != x.shape"):
        t.expect("cache_key(y) != key", "True", "other sizes have another hash")


@rule(
    "ST802",
    "instances are hashed and found by identity",
    right="""
    def same_as(self, other): ...  # leave == to torch: it compares elements
    """,
)
def identity_hash(t: Script) -> None:
    """Optimizers keep their state in dicts by parameter, modules and autograd keep sets of tensors. So `hash(x)` must work,
    must not change when `x` is written to, and two instances of equal value are two keys.
    """
    t.wrapper("x")
    t.wrapper("y", same="x")
    t.run("first = hash(x)", "a tensor is hashable")
    t.run("table = {x: 'x', y: 'y'}", "a tensor can be a key")
    t.expect("len(table)", "2", "two instances are two keys")
    t.expect("(table[x], table[y])", "('x', 'y')", "each finds its own")
    if t.attempt("x.add_(1)") or t.attempt("x.mul_(2)"):
        t.expect("hash(x)", "first", "a write does not change the hash")
        t.expect("table.get(x)", "'x'", "it is found after a write")


@rule(
    "ST803",
    "other threads get the same results",
    right="""
    class _State(threading.local):
        depth = 0  # a default for each thread
    """,
)
def threads(t: Script) -> None:
    """The backward on accelerators, data loaders and `nn.DataParallel` run the class in threads which did not import it,
    and in several at once. State that is shared between calls must be made for that.
    """
    t.wrapper("x")
    op = t.choose("x * 2", "x.clone()", "x.sin()", "x.t()", "x.view(-1)", "x.sum()", "x.detach()")
    t.require(f"def f():\n    return {op}")
    t.require("y = f()")
    t.run("results = in_threads(f, 3)", "what runs here runs in other threads")
    t.expect("results", "[y, y, y]", "the results of other threads")


@rule(
    "ST804",
    "repr works and does not change anything",
    right="""
    def __repr__(self):
        return f"Scaled({self.data!r}, {self.scale!r})"
    """,
)
def prints(t: Script) -> None:
    """`Tensor.__repr__` reads the storage that a wrapper does not have, so a class needs a `__repr__` of its own; debuggers,
    logging and error messages call it. It must work for every instance, give text, and leave the instance alone.
    """
    t.wrapper("x")
    t.require("before = [v.clone() for v in leaves(x)]")
    t.run("text = repr(x)", "a tensor can be printed")
    t.expect("type(text)", "str", "repr gives text")
    t.expect("leaves(x)", "before", "printing changes nothing")
    if t.value("x.is_floating_point()") and t.attempt("y = x.detach().requires_grad_()"):
        t.run("text = repr(y)", "a tensor that requires grad can be printed")


@rule(
    "ST805",
    "repr works while tracing",
    severity=Severity.WARNING,
    right="""
    def __repr__(self):
        return f"Scaled(scale={self.scale!r})"
    """,
)
def prints_while_tracing(t: Script) -> None:
    """Tracers print wrappers into logs and error messages, with fake inner tensors and symbolic sizes. A repr that reads
    values fails there, and hides the message that it was to be part of; one that turns sizes into numbers adds guards.
    """
    t.wrapper("x", min_dims=1, min_side=2)
    t.require("repr(x)", "it cannot be printed")
    symbolic = t.choose(False, True)
    t.require("mode = faking_symbolic()" if symbolic else "mode = faking()")
    t.require(f"y = faked(mode, x, dynamic={symbolic})", "it has no fake twin")
    t.require("before = specialised(mode)")
    t.run("text = repr(y)", "a fake one can be printed")
    t.expect("type(text)", "str", "repr gives text")
    t.run("log = OperationLog()")
    t.run("with mode, log:\n    text = repr(y)", "a fake one can be printed while its mode is on")
    t.expect("[n for n in log.names if 'scalar' in n]", "[]", "no value is read")
    t.expect("specialised(mode)", "before", "no symbol became a number")


@rule(
    "ST806",
    "an instance is freed when the last reference goes",
    severity=Severity.WARNING,
    right="""
    def __init__(self, data, scale):
        self.data, self.scale = data, scale  # look methods up when they are called
    """,
)
def freed(t: Script) -> None:
    """Memory of tensors must come back at once, not when the garbage collector runs some day. An instance that refers to
    itself (bound methods, caches, parents) or is kept in a table of the class holds its inner tensors.
    """
    t.wrapper("x")
    op = t.choose("x.detach()", "x.clone()", "x * 2", "x.t()")
    t.require("import weakref")
    t.require("assert rebuild(x) is not None")
    t.require(f"y = {op}")
    for name in "yx":
        t.require(f"alive = weakref.ref({name})")
        t.run(f"del {name}")
        t.expect("alive() is None", "True", "nothing else holds on to it")
