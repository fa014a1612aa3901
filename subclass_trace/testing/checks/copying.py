"""ST5xx: copying, moving, saving, modules and optimizers. What training scripts do with a weight
besides computing."""

from __future__ import annotations

from ..rules import Cost, Severity, rule
from ..script import Script


@rule("ST501", "detach keeps type and value, shares memory, and has no history", cost=Cost.SWEEP)
def detaches(t: Script) -> None:
    """`detach` is the one operation that everything uses: `nn.Parameter`, `.data`, `torch.save`,
    optimizers, hooks. It must give the same class with the same values, looking at the same memory.

    Passes: `cls(x.codes.detach(), x.scale)`.
    Fails: `x.dequantize()`, or `cls(x.codes.clone(), x.scale)`.
    """


@rule("ST502", "clone keeps type and value, and shares no memory", cost=Cost.SWEEP)
def clones(t: Script) -> None:
    """`clone` is how one gets a value that nobody else writes to: checkpointing, EMA weights, saved
    activations. All inner tensors must be copied, also the small ones.

    Passes: `cls(x.codes.clone(), x.scale.clone())`.
    Fails: `cls(x.codes.clone(), x.scale)`.
    """


@rule("ST503", "to gives the dtype and the device that were asked for", cost=Cost.SWEEP)
def converts(t: Script) -> None:
    """`module.to(torch.bfloat16)`, `.half()` and autocast ask for a dtype. A class may refuse, keep
    its storage format and change only the outer dtype, or convert; it must not return another dtype
    than it was asked for. `module.to("cuda")` and
    the meta device of deferred initialisation move a weight: the wrapper and every tensor in it, or
    the next operation mixes devices.

    Passes: `aten._to_copy` with `dtype=` changes the outer dtype, and moves every inner tensor for
    `device=`.
    Fails: `cls(x.codes.to(device), x.scale)`, or a rule that ignores `dtype=`.
    """


@rule("ST505", "copy_ takes over the value and shares no memory", cost=Cost.SWEEP)
def copies_in_place(t: Script) -> None:
    """`load_state_dict`, broadcasting of weights and `module.to` use `copy_`. Afterwards the
    destination has the value of the source, in its own memory (views of it must see the change).

    Passes: `x.codes.copy_(y.codes); x.scale.copy_(y.scale)`.
    Fails: `x.codes.copy_(y.codes)` where the scales differ.
    """


@rule("ST506", "deepcopy gives an equal value of its own", cost=Cost.SWEEP)
def deepcopies(t: Script) -> None:
    """`copy.deepcopy(model)` makes EMA models, pipeline stages and the copies that quantisation
    works on. The copy is of the same class, has equal values and its own memory, and what was
    shared inside of the copied object is shared again.

    Passes: torch's own `__deepcopy__`, or one that copies every inner tensor and the context.
    Fails: `__deepcopy__` that returns `self`, or forgets the scale.
    """


@rule("ST507", "what is pickled or saved comes back as an equal value", cost=Cost.SWEEP)
def pickles(t: Script) -> None:
    """Data loaders, RPC and `torch.multiprocessing` pickle tensors; checkpoints are written with
    `torch.save`, which stores tensors by storage. Class, metadata, context and values must come
    back, and what was one object must be one object again.

    Passes: torch's own `__reduce_ex__`, with a context that can be pickled.
    Fails: `__reduce__` that gives `(cls, (self.codes,))`.
    """


@rule("ST510", "it can be a parameter", cost=Cost.SWEEP)
def is_parameter(t: Script) -> None:
    """`nn.Parameter(x)` gives an instance of the class (made by `detach`) that counts as a
    parameter and requires grad if it was asked to. It must be registered by modules, flatten as
    before, and be a leaf.

    Passes: `aten.detach` gives the class: `nn.Parameter(w)` is one.
    Fails: `aten.detach` gives a dense tensor.
    """


@rule("ST511", "state_dict and load_state_dict carry it over", cost=Cost.SWEEP)
def state_dicts(t: Script) -> None:
    """A module whose parameter is a wrapper gives it in `state_dict()` with its class, and takes it
    back, by `copy_` (`assign=False`) or as it is (`assign=True`).

    Passes: `copy_` and `detach` are right: `load_state_dict` needs no more.
    Fails: `copy_` between two wrappers copies the codes alone.
    """


@rule("ST513", "an optimizer step does what it does to the dense value", cost=Cost.SWEEP)
def optimizer_steps(t: Script) -> None:
    """A trainable wrapper is updated in place by an optimizer, with `add_(grad, alpha=-lr)` and the
    like. The dense value afterwards must be that of the step on the dense value, up to the class's
    tolerance, and it must stay the same object.

    Passes: `add_`, `addcdiv_` and their `_foreach_` forms write the new value, or raise.
    Fails: `add_` ignores `alpha=`, which is the learning rate.
    """


@rule("ST514", "module.to converts a wrapper parameter", severity=Severity.WARNING, cost=Cost.SWEEP)
def modules_convert(t: Script) -> None:
    """`module.to(dtype)` and `module.to(device)` replace or swap the parameters of a module. A
    wrapper parameter must be one of its class afterwards, on that device or of that dtype.

    Passes: `aten._to_copy` gives the class, and `swap_tensors` can exchange the two.
    Fails: `aten._to_copy` gives the class with another shape.
    """


@rule(
    "ST515",
    "a view of a wrapper can be copied deeply and pickled",
    severity=Severity.WARNING,
    cost=Cost.SWEEP,
)
def offsets_copy(t: Script) -> None:
    """`Tensor.__deepcopy__` and `Tensor.__reduce_ex__` recognise a wrapper by a data pointer of 0.
    One with a storage offset has another pointer, is taken for a tensor with data, and fails with
    "Attempted to call copy_() on an invalid python storage" (torch 2.13). A class whose wrappers
    have storage offsets needs methods of its own.

    Passes: `__deepcopy__` builds from the inner tensors of the view.
    Fails: `torch.empty(0).set_(storage, ...)`, with the storage offset of a view.
    """
