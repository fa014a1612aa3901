"""ST5xx: copying, moving, saving, modules and optimizers. What training scripts do with a weight besides computing."""

from __future__ import annotations

from ..rules import Severity, rule
from ..script import Script


@rule("ST501", "detach keeps type and value, shares memory, and has no history")
def detaches(t: Script) -> None:
    """`detach` is the one operation that everything uses: `nn.Parameter`, `.data`, `torch.save`, optimizers, hooks. It
    must give the same class with the same values, looking at the same memory.
    """
    t.wrapper("x")
    t.run("y = x.detach()", "every tensor has detach")
    t.expect("type(y)", "type(x)", "detach keeps the class")
    t.expect("y.requires_grad", "False", "a detached tensor does not require grad")
    t.expect("leaves(y)", "leaves(x)", "detach keeps the values")
    if t.value("any(v.numel() for v in leaves(x))"):
        t.expect("shares_memory(x, y)", "True", "detach is a view, not a copy")


@rule("ST502", "clone keeps type and value, and shares no memory")
def clones(t: Script) -> None:
    """`clone` is how one gets a value that nobody else writes to: checkpointing, EMA weights, saved activations. All
    inner tensors must be copied, also the small ones.
    """
    t.wrapper("x")
    t.require("y = x.clone()")
    t.expect("type(y)", "type(x)", "clone keeps the class")
    t.expect("leaves(y)", "leaves(x)", "clone keeps the values")
    if t.value("x.layout == torch.jagged"):  # offsets say what the sizes are; the same object means equal sizes
        t.expect("shares_memory(x.values(), y.values())", "False", "clone shares no memory")
    else:
        t.expect("shares_memory(x, y)", "False", "clone shares no memory")


@rule("ST503", "to gives the dtype and the device that were asked for")
def converts(t: Script) -> None:
    """`module.to(torch.bfloat16)`, `.half()` and autocast ask for a dtype. A class may refuse, keep its storage format and
    change only the outer dtype, or convert; it must not return another dtype than it was asked for. `module.to("cuda")` and
    the meta device of deferred initialisation move a weight: the wrapper and every tensor in it, or the next operation
    mixes devices.
    """
    wanted = t.choose("torch.float64", "torch.bfloat16", "torch.float32", "'meta'")
    t.wrapper("x", floating=wanted != "'meta'")
    t.require(f"y = x.to({wanted})")
    t.expect("y.shape", "x.shape", "the sizes stay")
    if wanted == "'meta'":
        t.expect("y.device.type", wanted, "the device that was asked for")
        behind = "[n for n, v in named_leaves(y) if v.device.type != 'meta' and v.numel()]"
        t.expect(behind, "[]", "all inner tensors are there")
    else:
        t.expect("y.dtype", wanted, "the dtype that was asked for")


@rule("ST505", "copy_ takes over the value and shares no memory")
def copies_in_place(t: Script) -> None:
    """`load_state_dict`, broadcasting of weights and `module.to` use `copy_`. Afterwards the destination has the value of
    the source, in its own memory (views of it must see the change).
    """
    t.wrapper("x", min_dims=1, min_side=1)
    t.wrapper("y", shaped="x")
    t.require("inside = dict(named_leaves(x))")
    t.require("x.copy_(y)")
    moved = "[n for n, v in named_leaves(x) if v.data_ptr() != inside[n].data_ptr()]"
    t.expect(moved, "[]", "the inner tensors of the destination keep their memory")
    if t.subject.dense is not None:
        t.expect(t.dense("x"), t.dense("y"), "the destination has the value of the source")


@rule("ST506", "deepcopy gives an equal value of its own")
def deepcopies(t: Script) -> None:
    """`copy.deepcopy(model)` makes EMA models, pipeline stages and the copies that quantisation works on. The copy is of
    the same class, has equal values and its own memory, and what was shared inside of the copied object is shared again.
    """
    t.wrapper("x")
    t.assume(t.value("x.layout != torch.strided or x.storage_offset() == 0"))  # those are ST515
    t.require("import copy")
    t.run("y, again = copy.deepcopy([x, x])", "tensors can be copied deeply")
    t.expect("type(y)", "type(x)", "deepcopy keeps the class")
    t.expect("leaves(y)", "leaves(x)", "deepcopy keeps the values")
    t.expect("shares_memory(x, y)", "False", "a deep copy shares no memory")
    t.expect("again is y", "True", "one object is copied once")


@rule("ST507", "what is pickled or saved comes back as an equal value")
def pickles(t: Script) -> None:
    """Data loaders, RPC and `torch.multiprocessing` pickle tensors; checkpoints are written with `torch.save`, which stores
    tensors by storage. Class, metadata, context and values must come back, and what was one object must be one object
    again.
    """
    t.wrapper("x")
    t.assume(t.value("x.layout != torch.strided or x.storage_offset() == 0"))  # those are ST515
    t.require("import io, pickle")
    t.require("pickle.loads(pickle.dumps([v.clone() for v in leaves(x)]))", "its inner tensors cannot be pickled")
    t.require("context = x.__tensor_flatten__()[1]")
    t.require("pickle.dumps(context)", "its context cannot be pickled")
    t.only_if("same_metadata(rebuild(x).__tensor_flatten__()[1], context, type(x))", "its context gets lost")
    if t.choose("pickle", "save") == "pickle":
        t.run("y, again = pickle.loads(pickle.dumps([x, x]))", "tensors can be pickled")
    else:
        t.run("file = io.BytesIO()\ntorch.save([x, x], file)", "tensors can be saved")
        t.run("file.seek(0)\ny, again = torch.load(file, weights_only=False)", "what was saved can be loaded")
    t.expect("type(y)", "type(x)", "the class comes back")
    t.expect("plain_meta(y)", "plain_meta(x)", "the metadata comes back")
    t.expect("leaves(y)", "leaves(x)", "the values come back")
    t.expect("same_metadata(y.__tensor_flatten__()[1], context, type(x))", "True", "the context comes back")
    t.expect("again is y", "True", "one object is saved once")


@rule("ST510", "it can be a parameter")
def is_parameter(t: Script) -> None:
    """`nn.Parameter(x)` gives an instance of the class (made by `detach`) that counts as a parameter and requires grad if
    it was asked to. It must be registered by modules, flatten as before, and be a leaf.
    """
    t.wrapper("x")
    t.require("x.detach()")
    grad = t.value("x.is_floating_point() or x.is_complex()")
    t.run(f"p = torch.nn.Parameter(x, requires_grad={grad})", "a tensor can be made a parameter")
    t.expect("isinstance(p, torch.nn.Parameter)", "True", "it counts as a parameter")
    t.expect("isinstance(p, type(x))", "True", "it keeps its class")
    t.expect("(p.requires_grad, p.is_leaf)", f"({grad}, True)", "it is a leaf that requires grad if asked to")
    t.require("module = torch.nn.Module()")
    t.run("module.weight = p", "a module takes it as a parameter")
    t.expect("[n for n, _ in module.named_parameters()]", "['weight']", "a module lists it")
    t.require("context = x.__tensor_flatten__()[1]")
    if t.value("same_metadata(rebuild(x).__tensor_flatten__()[1], context, type(x))") and not grad:
        t.expect("same_metadata(p.__tensor_flatten__()[1], context, type(x))", "True", "the context is kept")


@rule("ST511", "state_dict and load_state_dict carry it over")
def state_dicts(t: Script) -> None:
    """A module whose parameter is a wrapper gives it in `state_dict()` with its class, and takes it back, by `copy_`
    (`assign=False`) or as it is (`assign=True`).
    """
    t.wrapper("x")
    t.wrapper("y", shaped="x")
    assign = t.choose(True, False)
    if not assign:
        t.wrapper("z", same="y")
        t.require("z.copy_(x)")
        t.only_if("same(leaves(z), leaves(x)) and not shares_memory(z, x)", "its copy_ is another thing")
    for name in "xy":
        module = {"x": "source", "y": "target"}[name]
        t.require(f"{module} = torch.nn.Module()")
        t.require(f"{module}.w = torch.nn.Parameter({name}, requires_grad=False)", "it cannot be a parameter")
        t.only_if(f"isinstance({module}.w, torch.nn.Parameter)", "it cannot be a parameter")
    t.run("state = source.state_dict()", "a module has a state_dict")
    t.expect("isinstance(state['w'], type(x))", "True", "the state_dict holds the class")
    t.run(f"target.load_state_dict(state, assign={assign})", "a state_dict can be loaded")
    t.expect("leaves(target.w)", "leaves(x)", "the loaded values are those of the source")


@rule("ST513", "an optimizer step does what it does to the dense value")
def optimizer_steps(t: Script) -> None:
    """A trainable wrapper is updated in place by an optimizer, with `add_(grad, alpha=-lr)` and the like. The dense value
    afterwards must be that of the step on the dense value, up to the class's tolerance, and it must stay the same object.
    """
    t.wrapper("x", floating=True)
    t.wrapper("g", shaped="x")
    foreach = t.choose(False, True)
    t.require("p = torch.nn.Parameter(x)", "it cannot be a parameter")
    t.require("p.grad = g", "it cannot hold a gradient of its own class")
    t.require(f"d = torch.nn.Parameter({t.dense('x')}.detach().clone())")
    t.require(f"d.grad = {t.dense('g')}.detach().clone()")
    add = "torch._foreach_add_([x.clone()], [g], alpha=2)" if foreach else "x.clone().add_(g, alpha=2)"
    t.require(f"with torch.no_grad():\n    {add}")
    for name in "pd":
        t.require(f"opt_{name} = torch.optim.SGD([{name}], lr=0.5, foreach={foreach})")
    t.run("opt_p.step()", "the step runs")
    t.require("opt_d.step()")
    t.expect(f"{t.dense('p')}.detach()", "d.detach()", "the step changes the value as it changes the dense one")


@rule("ST514", "module.to converts a wrapper parameter", severity=Severity.WARNING)
def modules_convert(t: Script) -> None:
    """`module.to(dtype)` and `module.to(device)` replace or swap the parameters of a module. A wrapper parameter must be
    one of its class afterwards, on that device or of that dtype.
    """
    t.wrapper("x", floating=True)
    dtype = t.choose("torch.float64", "torch.bfloat16")
    t.require(f"y = x.to({dtype})")
    t.only_if(f"type(y) is type(x) and y.dtype is {dtype}", "its to() gives another class or dtype")
    for name in "ab":
        t.wrapper(name, same="x")
    t.require("torch.utils.swap_tensors(a, b)", "two of them cannot be swapped")
    t.require("module = torch.nn.Module()\nmodule.w = torch.nn.Parameter(x)", "it cannot be a parameter")
    t.only_if("isinstance(module.w, torch.nn.Parameter)", "it cannot be a parameter")
    t.run(f"module.to({dtype})", "a module with it can be converted")
    t.expect("isinstance(module.w, type(x))", "True", "the parameter keeps its class")
    t.expect("leaves(module.w)", "leaves(y)", "the parameter holds the converted values")
    t.expect("(module.w.dtype, isinstance(module.w, torch.nn.Parameter))", f"({dtype}, True)", "and has the dtype")


@rule("ST515", "a view of a wrapper can be copied deeply and pickled", severity=Severity.WARNING)
def offsets_copy(t: Script) -> None:
    """`Tensor.__deepcopy__` and `Tensor.__reduce_ex__` recognise a wrapper by a data pointer of 0. One with a storage
    offset has another pointer, is taken for a tensor with data, and fails with "Attempted to call copy_() on an invalid
    python storage" (torch 2.13). A class whose wrappers have storage offsets needs methods of its own.
    """
    t.wrapper("x", min_dims=1, min_side=1)
    t.assume(t.value("x.layout is torch.strided and x.storage_offset() != 0"))
    t.require("import copy, pickle\npickle.dumps(x.__tensor_flatten__()[1])", "its context cannot be pickled")
    t.run("y = copy.deepcopy(x)", "a wrapper with a storage offset can be copied deeply")
    t.expect("leaves(y)", "leaves(x)", "deepcopy keeps the values")
    t.run("y = pickle.loads(pickle.dumps(x))", "a wrapper with a storage offset can be pickled")
    t.expect("leaves(y)", "leaves(x)", "pickling keeps the values")
