"""What a reader of each finding of the score card found: class -> rule -> whose fault it is and why.

``*`` stands for every class. Written after reading the printed programs and the classes (torch 2.13, torchao 0.18).
"""

from __future__ import annotations

_TABLE: dict[str, dict[str, str]] = {
    "*": {
        "ST110": (
            "*Class*: the constructor keeps a tensor that requires grad as it is. Run by hand for TwoTensor: "
            "after `TwoTensor(g, g)` and a backward the gradient is on the wrapper, and `g.grad` is None. The "
            "constructor should refuse, detach, or be differentiable like DTensor's `from_local`."
        ),
        "ST301": (
            "*Class*: its `__torch_dispatch__` does not look at the types of the call. It takes its own operands "
            "apart, and hands inner tensors together with the foreign wrapper to the operation. It should return "
            "NotImplemented (PyTorch issue 162964, item 7)."
        ),
        "ST305": (
            "*Class*: in inference mode nobody takes composite operations apart, so the class meets `reshape`, "
            "`chunk` and the like whole, and has no rule for them. `func.decompose(*args, **kwargs)` is the way "
            'out. Where the message is "Cannot set version_counter for inference tensor", a wrapper that is a '
            "view of a normal tensor was made inside of inference mode: it has to be made outside "
            "(`torch.inference_mode(False)`), which torch's `return_and_correct_aliasing` does not do."
        ),
        "ST308": (
            "*Torch*: below `__torch_dispatch__` the keys that resolve conjugate and negative bits are switched "
            "off, so the kernel works on the memory as it is (PyTorch issues 130646 and 108983). A class can "
            "avoid it by resolving the bits of what it is given; torch.compile gives other numbers than eager "
            "mode here."
        ),
        "ST322": (
            "*Class*: the result of a view operation is built without `return_and_correct_aliasing`, so torch "
            "takes base and view for unrelated tensors although the inner tensors share memory. Matters to what "
            "compares storages: functionalisation, alias analysis, checkpointing."
        ),
        "ST515": (
            "*Class* (and torch): `Tensor.__deepcopy__` and `__reduce_ex__` take a wrapper whose `data_ptr()` is "
            "not 0 for a tensor with data; a wrapper with a storage offset has such a pointer. A class can avoid "
            "it with methods of its own, or by not passing on the storage offset."
        ),
    },
    "DTensor": {
        "ST303": (
            '*Class*: run by hand, DTensor raises "got mixed torch.Tensor and DTensor" for any other tensor '
            "subclass instead of returning NotImplemented, so a wrapper that knows DTensors is never asked unless "
            "its class comes first."
        ),
        "ST305": (
            "*Class*: run by hand, `x.view(-1)` and `x.chunk(2)` of a DTensor made outside of inference mode "
            'raise "Cannot set version_counter for inference tensor" inside of it; `x[:1]` of a dense tensor does '
            "not."
        ),
        "ST306": (
            "*Class*: run by hand on a fake group and CPU, `x.uniform_(generator=g)` gives other numbers when the "
            "global seed changes: the generator that is passed is not used. (DTensor warns that random operations "
            "may be incomplete on CPU.)"
        ),
        "ST322": (
            "*Class*: run by hand, views that come as a list (`split`, `chunk`, `unbind`) have outer storages of "
            "their own, although the local tensors share memory; a single one (`x[:2]`, `view`) has that of its "
            "base."
        ),
    },
    "ComplexTensor": {
        "ST103": "*Class*: the constructor, and so unflatten, stores `real.detach()` and `imag.detach()`.",
        "ST114": "*Class*: three `is_pinned` and two `detach` for each unflatten.",
        "ST323": "*Class*: run by hand, `aten.mul_` in inference mode gives another object than its argument.",
        "ST330": (
            "*Class*: run by hand, `z.unsqueeze_(0)` gives the inner tensors the size (1, 2), and leaves the "
            "outer one at (2,)."
        ),
        "ST331": "*Class*: run by hand, `y = x.to(x.dtype, copy=True); y.add_(1)` changes x: nothing is copied.",
        "ST611": "*Class*: run by hand, the memory format of `to` is ignored.",
        "ST613": "*Class*: clone of a transposed one has other strides than clone of a dense tensor.",
    },
    "CustomTensorPlainOut": {
        "ST502": "*Design*: every operation of this test class gives a plain tensor, clone as well.",
        "ST506": "*Design*: follows from clone giving a plain tensor; torch says so in its message.",
        "ST611": "*Design*: the result is a plain tensor made by the class's own rule.",
    },
    "SparseSemiStructuredTensorCUTLASS": {
        "ST111": (
            "*Class*: unflatten takes the shape from the context and ignores `outer_size`; one trace cannot serve "
            "two sizes."
        ),
        "ST205": (
            "*Class*: run by hand, flatten and unflatten with symbolic inner and outer sizes give a wrapper of "
            "the numbers of the first one: its size is in the context, and `outer_size` is ignored. A compiled "
            "graph of dynamic sizes is wrong, or made anew for each size."
        ),
        "ST613": "*Class*: the transposed one shows outer strides of a contiguous tensor.",
    },
    "NestedTensor": {
        "ST323": "*Class*: run by hand, `aten.add_` in inference mode gives another object than its argument.",
        "ST511": (
            "*Design*: two jagged tensors have equal sizes only if they have the same offsets object, so "
            "`load_state_dict` into a module with offsets of its own reports a size mismatch."
        ),
    },
    "NF4Tensor": {
        "ST111": "*Class*: the original shape is part of the context, and `outer_size` is ignored.",
        "ST205": (
            "*Class*: run by hand, flatten and unflatten with symbolic inner and outer sizes give a wrapper of "
            "the numbers of the first one: its size is in the context, and `outer_size` is ignored. A compiled "
            "graph of dynamic sizes is wrong, or made anew for each size."
        ),
        "ST506": (
            "*Class*: `clone` quantises the value again with a scaler block size of 256, whatever the tensor has; "
            "with another one an assertion fails, or the numbers change."
        ),
        "ST613": (
            "*Class*: run by hand, `x.t()` of size (64, 32) shows the size (64, 32) with strides (1, 32); a dense "
            "one shows (32, 64)."
        ),
    },
    "Int8Tensor": {
        "ST401": (
            "*Class*, for use in inference: run by hand, `F.linear(x, w)` with `w.requires_grad` gives a result "
            "that does not require grad, without a word. A weight that cannot be trained should refuse "
            "`requires_grad_()`."
        ),
        "ST503": "*Class*: run by hand, `w.to(torch.float64).dtype` is bfloat16; the dtype is ignored.",
    },
    "Float8Tensor": {
        "ST401": (
            "*Class*, for use in inference: run by hand, `F.linear(x, w)` with `w.requires_grad` gives a result "
            "that does not require grad, without a word. A weight that cannot be trained should refuse "
            "`requires_grad_()`."
        ),
        "ST503": "*Class*: as Int8Tensor, from the same base class: the dtype of `to` is ignored.",
        "ST613": (
            "*Class*: `w.transpose(0, -1)` transposes the inner tensor, and shows outer strides of a contiguous tensor."
        ),
    },
    "MXTensor": {
        "ST503": "*Class*: as Int8Tensor, from the same base class: the dtype of `to` is ignored.",
    },
    "Int8QuantizedTrainingLinearWeight": {
        "ST310": (
            "*Class*: run by hand, `x.reshape(-1)` of a (3, 4) weight gives a (3, 4) weight, without an error: "
            "the class takes `view` for the identity."
        ),
        "ST331": (
            "*Class*: run by hand, `y = x.to(x.dtype, copy=True)` shares the int8 data with x, and `y.add_(1)` "
            "changes x."
        ),
    },
    "Int8MixedPrecisionTrainingLinearWeight": {
        "ST323": (
            "*Class*: in inference mode `add_` gives another object than the one that was written; outside of it "
            "autograd hides that."
        ),
        "ST330": (
            "*Class*: `t_()` transposes the inner tensor; the outer sizes and strides stay, so the two disagree "
            "from then on."
        ),
    },
    "NVFP4Tensor": {
        "ST613": ("*Class*: run by hand, `x.t()` of size (32, 32) shows strides (32, 1); a dense one shows (1, 32)."),
        "ST805": (
            "*Class*: `repr` dequantises, and that mixes a real constant with fake tensors; printing while "
            "tracing raises."
        ),
    },
    "Float8TrainingTensor": {
        "ST502": (
            "*Class*: `clone` copies the data and shares the scale; an in-place change of one changes the other."
        ),
    },
    "OptimState4bit": {
        "ST111": "*Class*: the shape is part of the context, and `outer_size` is ignored.",
        "ST205": (
            "*Class*: run by hand, flatten and unflatten with symbolic inner and outer sizes give a wrapper of "
            "the numbers of the first one: its size is in the context, and `outer_size` is ignored. A compiled "
            "graph of dynamic sizes is wrong, or made anew for each size."
        ),
        "ST506": "*Class*: run by hand, there is no `clone`, so `copy.deepcopy` of an optimizer state fails.",
        "ST514": (
            "*Class*: `x.to(torch.float64)` shows float64, and `detach` of that shows float32 again: the "
            "constructor does not know the dtype."
        ),
    },
    "OptimState8bit": {
        "ST506": "*Class*: run by hand, there is no `clone`, so `copy.deepcopy` of an optimizer state fails.",
        "ST514": (
            "*Class*: `x.to(torch.float64)` shows float64, and `detach` of that shows float32 again: the "
            "constructor does not know the dtype."
        ),
    },
    "OptimStateFp8": {
        "ST506": "*Class*: run by hand, there is no `clone`, so `copy.deepcopy` of an optimizer state fails.",
        "ST514": (
            "*Class*: `x.to(torch.float64)` shows float64, and `detach` of that shows float32 again: the "
            "constructor does not know the dtype."
        ),
    },
    "IntxUnpackedToInt8Tensor": {
        "ST401": (
            "*Class*, for use in inference: run by hand, `F.linear(x, w)` with `w.requires_grad` gives a result "
            "that does not require grad, without a word. A weight that cannot be trained should refuse "
            "`requires_grad_()`."
        ),
    },
    "WeightQBytesTensor": {
        "ST111": "*Class*: size and stride are text in the context, and `outer_size` is ignored.",
        "ST205": (
            "*Class*: run by hand, flatten and unflatten with symbolic inner and outer sizes give a wrapper of "
            "the numbers of the first one: its size is in the context, and `outer_size` is ignored. A compiled "
            "graph of dynamic sizes is wrong, or made anew for each size."
        ),
        "ST321": (
            "*Class*: run by hand, every operation without a rule of its own runs on a dequantised copy; `x[:1]` "
            "is a dense tensor of its own, and writes to it are lost."
        ),
        "ST502": (
            "*Class*: run by hand, every operation without a rule of its own runs on a dequantised copy; `clone` "
            "gives a dense tensor."
        ),
        "ST505": (
            "*Class*: run by hand, every operation without a rule of its own runs on a dequantised copy; "
            "`a.copy_(b)` changes nothing, without an error."
        ),
        "ST506": (
            "*Class*: run by hand, every operation without a rule of its own runs on a dequantised copy; follows "
            "from clone giving a dense tensor."
        ),
        "ST513": (
            "*Class*: run by hand, every operation without a rule of its own runs on a dequantised copy; "
            "`a.add_(1)` changes nothing, so an optimizer step is lost without an error."
        ),
    },
    "SubclassWithTensorFactory": {
        "ST321": (
            "*Class*: run by hand, it multiplies every inner tensor by ones before it computes, so each operation "
            "works on copies; `x.view(-1)` shares no memory with x."
        ),
        "ST323": (
            "*Class*: run by hand, it multiplies every inner tensor by ones before it computes, so each operation "
            "works on copies; `aten.add_` gives another object than its argument."
        ),
        "ST326": (
            "*Class*: run by hand, it multiplies every inner tensor by ones before it computes, so each operation "
            "works on copies; `x.add_(1)` changes nothing, without an error; `out=` is not written."
        ),
        "ST330": (
            "*Class*: run by hand, it multiplies every inner tensor by ones before it computes, so each operation "
            "works on copies; `x.unsqueeze_(0)` changes nothing."
        ),
        "ST405": (
            "*Class*: run by hand, it multiplies every inner tensor by ones before it computes, so each operation "
            "works on copies; the second backward is not added, since gradients accumulate in place."
        ),
        "ST501": (
            "*Class*: run by hand, it multiplies every inner tensor by ones before it computes, so each operation "
            "works on copies; `x.detach()` shares no memory with x."
        ),
        "ST505": (
            "*Class*: run by hand, it multiplies every inner tensor by ones before it computes, so each operation "
            "works on copies; `a.copy_(b)` changes nothing, without an error."
        ),
        "ST513": (
            "*Class*: run by hand, it multiplies every inner tensor by ones before it computes, so each operation "
            "works on copies; an optimizer step is lost without an error."
        ),
    },
    "AsyncCollectiveTensor": {
        "ST701": "*Class*: it keeps `completed` in a slot that its context does not tell, which a region refuses.",
        "ST703": "*Class*: it keeps `completed` in a slot that its context does not tell, which a region refuses.",
        "ST705": "*Class*: it keeps `completed` in a slot that its context does not tell, which a region refuses.",
        "ST502": (
            "*Design*: every operation but a view waits for the collective and gives a plain tensor, clone as well."
        ),
        "ST506": "*Design*: follows from clone giving a plain tensor; torch says so in its message.",
        "ST702": (
            "*Torch*: run by hand, the result of the function compiled with `aot_eager` does not require grad, "
            "without a word; in eager mode, with `eager` and in a region of this package it does."
        ),
    },
}
VERDICTS = {(cls, rule): text for cls, rules in _TABLE.items() for rule, text in rules.items()}
