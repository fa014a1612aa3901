"""Who serves a call that our trace refuses: one row for each code of a refusal.

Capture says what it met, by a code, and never who should serve the call. That is decided here, by
what Dynamo was seen to do with such programs (the survey behind ``docs/limits.md``): it is asked
where its graph breaks help, and not where its graph would leave the same thing out silently.
"""

from __future__ import annotations

from enum import Enum

from ..errors import LimitError, SubclassTraceError, UnsupportedError


class Route(Enum):
    """What becomes of a refused call; the value is how it is told."""

    DYNAMO = "torch.compile, with our back end"
    EAGER = "eager mode, for each such call"
    ONCE = "eager mode, for this call: the next one is traced"
    AS_EAGER = "eager mode, which raises it, too"
    RAISE = "nobody: it is raised"


#: code of `UnsupportedError` -> (who serves the call with ``frontend="auto"``, what was met)
ROUTES: dict[str, tuple[Route, str]] = {
    # ---- values inside tensors
    "control-flow-on-values": (
        Route.DYNAMO,
        "sizes or control flow that depend on values inside a tensor",
    ),
    "branch-on-value": (Route.DYNAMO, "a branch on a value inside a tensor"),
    "branch-on-float": (
        Route.DYNAMO,
        "a branch on a float that is a symbol, or its use as a number",
    ),
    "condition-on-values": (Route.DYNAMO, "a condition on values that no call can check"),
    "values-read": (Route.DYNAMO, "the values of a tensor read as an array, or its address"),
    "text-of-values": (Route.DYNAMO, "text of the values of a tensor"),
    "memory-lent": (Route.DYNAMO, "the memory of a tensor given to other code"),
    "function-for-each-element": (
        Route.DYNAMO,
        "a Python function called for each element of a tensor",
    ),
    "index-from-values": (Route.EAGER, "a wrapper indexed by a number from inside a tensor"),
    "sizes-from-values": (Route.EAGER, "results of `linalg_lstsq` whose sizes depend on values"),
    "one-hot": (Route.EAGER, "`one_hot` whose values tell the number of classes"),
    "padding-looked-at": (Route.EAGER, "padding that `nn.TransformerEncoder` looks at"),
    "unstable-metadata": (
        Route.DYNAMO,
        "what an input says of itself and may differ between calls",
    ),
    "address": (Route.EAGER, "the same, where Dynamo keeps what the first call said"),
    # ---- operations
    "no-fake-kernel": (Route.DYNAMO, "an operation without a kernel for fake tensors"),
    "no-fake-kernel-at-all": (Route.EAGER, "the same, which Dynamo refuses as well"),
    "composite": (
        Route.EAGER,
        "an operation whose Python form computes something else than its kernel",
    ),
    "not-contiguous": (Route.EAGER, "an operation that is refused for strides by eager mode"),
    "byte-mask": (Route.EAGER, "an index that is a mask of bytes"),
    "operator-over-wrappers": (Route.EAGER, "a higher order operator over wrappers"),
    "branch-of-operator": (
        Route.DYNAMO,
        "a branch of a higher order operator that writes, or takes a tensor from outside",
    ),
    "number-carried": (Route.EAGER, "a number that `while_loop` carries"),
    "state-in-branch": (
        Route.EAGER,
        "a branch of a higher order operator that changes Python state",
    ),
    "operator-in-dynamo": (
        Route.RAISE,
        "a higher order operator in Dynamo's graph that is not supported",
    ),
    "collective-in-place": (
        Route.DYNAMO,
        "a collective in place of a kind that has no functional form",
    ),
    "forward-mode": (Route.EAGER, "forward-mode derivatives under `vmap`"),
    "graph-node": (Route.DYNAMO, "a node of a graph that is no operation"),
    "generator-of-a-graph": (Route.DYNAMO, "a random generator in a graph for inductor"),
    "no-partition": (Route.DYNAMO, "a backward whose needs can be neither saved nor recomputed"),
    # ---- writes and memory
    "write": (Route.EAGER, "a write that no functional graph has"),
    "fused-step": (Route.DYNAMO, "a fused step of an optimizer that has no functional form"),
    "not-functional": (Route.EAGER, "a write that torch's functionalization refuses"),
    "memory-exchanged": (Route.EAGER, "other memory for a tensor: `x.data = y`"),
    "shared-memory-written": (
        Route.EAGER,
        "memory that arguments, or a result and an argument, share and the region writes",
    ),
    "input-changed": (Route.EAGER, "an input changed in shape, type or context"),
    "late-write": (Route.EAGER, "memory of the forward, written by a later backward"),
    "backward-write": (Route.DYNAMO, "an input, a result or a tangent, written by the backward"),
    # ---- inputs
    "kind-of-tensor": (Route.EAGER, "a sparse, quantized or nested tensor without a wrapper"),
    "plain-subclass": (Route.EAGER, "a tensor subclass that is no wrapper"),
    "lazy-parameter": (Route.ONCE, "a parameter of a lazy module, without values yet"),
    "compiles-ahead": (Route.RAISE, "a call of a region with `device=`"),
    "fake-tensor": (Route.DYNAMO, "a fake tensor of another trace"),
    "nameless-tensor": (Route.DYNAMO, "a tensor that no argument, name or attribute leads to"),
    "tensor-from-unread-code": (Route.DYNAMO, "a tensor that code brings in which is not read"),
    "wrapper-in-wrapper": (Route.EAGER, "a wrapper that is inside of another input"),
    "context-not-comparable": (Route.EAGER, "a flatten context with what guards cannot compare"),
    "context-shared": (Route.EAGER, "a result whose context holds an object of that of an input"),
    "context-changed": (
        Route.DYNAMO,
        "a flatten context that changes between forward and backward, or in one",
    ),
    "number-of-numbers": (Route.DYNAMO, "a wrapper that keeps a number computed of sizes"),
    "ragged-number": (Route.DYNAMO, "the ragged size of a jagged tensor, used as a number"),
    "size-of-no-input": (Route.DYNAMO, "a size that belongs to no input"),
    # ---- results
    "view-as-result": (Route.EAGER, "a view that cannot be made again on its base"),
    "grad-as-result": (Route.EAGER, "the `.grad` of a tensor from outside, returned"),
    "gradient-kept-on-result": (
        Route.DYNAMO,
        "`retain_grad()` on a result, or a result whose `.grad` is set",
    ),
    "attributes-of-result": (Route.EAGER, "attributes set on a result"),
    "leaf-made-inside": (
        Route.DYNAMO,
        "an autograd leaf that the region makes, and that leads out of it",
    ),
    "leaf-of-a-view": (Route.EAGER, "the same, of a view"),
    "inner-requires-grad": (Route.EAGER, "an inner tensor that requires grad by itself"),
    "ragged-result": (Route.EAGER, "the ragged size of a jagged tensor, returned"),
    # ---- gradients
    "inner-backward": (Route.DYNAMO, "`.backward()` in the region, of a kind that is not traced"),
    "inner-differentiation": (
        Route.DYNAMO,
        "gradients in the region that hooks or a history outside would see",
    ),
    "requires-grad-changed": (
        Route.EAGER,
        "`requires_grad` changed outside after a backward in the region",
    ),
    "hook-on-outside": (Route.DYNAMO, "a hook registered on a tensor from outside"),
    "saved-tensor-hooks-set": (Route.DYNAMO, "hooks on saved tensors, set in the region"),
    "backward": (Route.EAGER, "a first backward that cannot be traced"),
    "anomaly-mode": (Route.EAGER, "gradients inside of the region in anomaly mode"),
    "operator-without-derivative": (
        Route.EAGER,
        "a Python kernel of `torch.library` without a derivative, that a gradient goes through",
    ),
    "backward-operation": (Route.DYNAMO, "an operation of the backward that cannot be traced"),
    "backward-effect": (Route.EAGER, "an effect of the backward"),
    "backward-changes-state": (
        Route.EAGER,
        "Python state that a hook or a custom backward changes",
    ),
    "backward-reads-arguments": (
        Route.DYNAMO,
        "a container among the arguments that a backward reads",
    ),
    "sparse-gradient": (Route.EAGER, "a sparse gradient of an input"),
    "batched-gradients": (Route.DYNAMO, "several gradients at once"),
    "detached-input": (Route.DYNAMO, "a second derivative after an input was detached in place"),
    "ddp-reducer": (Route.RAISE, "DistributedDataParallel's reducer under compiled autograd"),
    "engine-refuses": (
        Route.RAISE,
        "a backward that torch's engine refuses under compiled autograd",
    ),
    # ---- modes and flags
    "grad-mode-left": (Route.EAGER, "grad mode left on or off"),
    "inference-mode-left": (Route.EAGER, "a result of another inference mode than the caller's"),
    "default-dtype-set": (Route.EAGER, "a default dtype set in the region"),
    "flag-of-kernels": (
        Route.EAGER,
        "an operation after a flag that kernels read as they run was set in the region",
    ),
    "default-device-set": (Route.EAGER, "a default device set in the region"),
    "runs-eagerly": (Route.RAISE, "`specialize` of a call that would run eagerly"),
    "hooks-on-all-modules": (Route.DYNAMO, "hooks of a region, and hooks on all modules"),
    # ---- Python state
    "class-changed": (Route.DYNAMO, "an attribute of a class, set"),
    "object-changed": (Route.DYNAMO, "a change of an object that cannot be taken back"),
    "own-namespace": (
        Route.EAGER,
        "an attribute set of an object whose `__dict__` is no plain dict (`self.__dict__ = self`)",
    ),
    "memory-of-an-array": (Route.EAGER, "a tensor over the memory of a numpy array"),
    "function-handed-out": (Route.EAGER, "a function that the region makes, handed out"),
    "iterator-handed-out": (Route.EAGER, "a generator, coroutine or iterator, handed out"),
    "object-handed-out": (Route.DYNAMO, "a new object that no other call can make again"),
    "computed-key": (Route.DYNAMO, "a key of a dict that is computed"),
    "context-variable-set": (Route.DYNAMO, "a `ContextVar`, set"),
    "iterator-advanced": (Route.DYNAMO, "an iterator from outside, advanced"),
    "generator-made-inside": (Route.DYNAMO, "a random generator that the region makes and keeps"),
    "cache-kept": (Route.DYNAMO, "a `lru_cache` that keeps what the region computes"),
    "cache-filled": (Route.EAGER, "a cache whose function may read what the region has written"),
    "class-made": (Route.EAGER, "a class made by `type()`, with hooks that Dynamo runs once"),
    "finalizer": (Route.EAGER, "an object with a `__del__`"),
    "too-many-places": (Route.DYNAMO, "more places of Python state than the policy allows"),
    "makes-state": (Route.ONCE, "a first call that makes the state of an optimizer or a scaler"),
    "sets-up-hooks": (Route.ONCE, "a first call in which a library sets up hooks"),
    "step-left-out": (
        Route.DYNAMO,
        "an optimizer's step that a `GradScaler` may leave out, of a kind that is no branch",
    ),
    # ---- code that is not read
    "unknown-c-code": (Route.DYNAMO, "code of C whose meaning is not known"),
    # which Dynamo's model of that C code often leaves out
    "unread-python-code": (Route.EAGER, "Python code that C code calls unseen"),
    "c-code-given": (Route.DYNAMO, "an object that C code may change or keep"),
    "c-code-keeps": (Route.DYNAMO, "an object that C code keeps"),
    "code-not-readable": (Route.DYNAMO, "a function whose code cannot be read"),
    "managed-module": (Route.DYNAMO, "a module that torch manages in each call (FSDP2, DDP)"),
    "torchscript": (Route.EAGER, "a module of TorchScript"),
    "asks-world": (Route.DYNAMO, "clocks, files, random numbers of Python, printing, threads"),
    "asks-device": (Route.EAGER, "seeds and settings of one kind of device"),
    "asks-for-id": (Route.DYNAMO, "`id` of an object"),
    "asks-for-unseen": (Route.DYNAMO, "frames, references, sizes in memory"),
    "fails-in-trace": (
        Route.DYNAMO,
        "an error of the function in the trace that eager mode does not raise",
    ),
    # ---- wrapper classes
    "no-rule": (Route.AS_EAGER, "an operation that a declared wrapper has no rule for"),
    "wrapper-form": (
        Route.DYNAMO,
        "inner tensors of a declared wrapper that do not fit an operation",
    ),
}


def route_of(error: SubclassTraceError) -> Route:
    """Who serves a call that is refused by this error.

    Errors of protocols, arguments, options, back ends, tangents and the verifier are raised:
    Dynamo would not know better.
    """
    if isinstance(error, UnsupportedError):
        return ROUTES[error.code][0]
    return Route.DYNAMO if isinstance(error, LimitError) else Route.RAISE


def table() -> str:
    """The rows as Markdown, for ``docs/limits.md``."""
    rows = [f"| `{code}` | {what} | {route.value} |" for code, (route, what) in ROUTES.items()]
    return "\n".join(["| code | met | served by |", "|---|---|---|", *rows])


def compiles_ahead(device: object) -> UnsupportedError:
    """A call of a region with ``device=``."""
    return UnsupportedError(
        f"the region compiles ahead, for tensors on {device}",
        code="compiles-ahead",
        fix="warm_up() and save(); then load the file for what is there",
    )
