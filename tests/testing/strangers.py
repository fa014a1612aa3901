"""Wrapper classes with one fault each, written against README and docs alone, without a look at the rules.

A fault is a piece of the text of a family (`families`) that is another one: (name, family, old, new, the rules of which
one must stand first in the report).
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One fault.

    Attributes:
        name: as a test prints it.
        family: which right class it is made of.
        old, new: the piece of text.
        rules: those of which one must stand first in the report.
    """

    name: str
    family: str
    old: str
    new: str
    rules: str


_WRAP = "out = tree_map(lambda a, b: Both(a, b)"
_LEFT = "left = func(*tree"


def _before(anchor: str, *lines: str) -> str:
    """The lines, and then the anchor: both in a function of a method."""
    return "\n        ".join([*lines, anchor])


FAULTS = [
    # ---------------------------------------------------------------------------------------------- Scaled
    Fault("add_forgets_alpha", "Scaled", "x.codes + y.codes * alpha", "x.codes + y.codes", "ST314"),
    Fault(
        "add_takes_the_first_scale",
        "Scaled",
        "isinstance(y, Scaled) and x.scale == y.scale:",
        "isinstance(y, Scaled):",
        "ST316",
    ),
    Fault(
        "flatten_forgets_the_scale", "Scaled", 'return ["codes"], (self.scale,)', 'return ["codes"], (1.5,)', "ST101"
    ),
    Fault("number_scales_twice", "Scaled", "Scaled(x.codes * y, x.scale)", "Scaled(x.codes * y, x.scale * y)", "ST310"),
    Fault(
        "clone_shares",
        "Scaled",
        "aten.clone.default: convert",
        "aten.clone.default: lambda f, x, **k: Scaled(x.codes, x.scale)",
        "ST502 ST331",
    ),
    Fault("in_place_forgets_to_divide", "Scaled", "copies[id(t)] / t.scale", "copies[id(t)]", "ST326"),
    Fault(
        "in_place_returns_the_dense",
        "Scaled",
        "return out if out is None else written",
        "return out",
        "ST323 ST305",
    ),
    Fault(
        "views_are_of_scale_one",
        "Scaled",
        "lambda c: Scaled(c, x.scale), func",
        "lambda c: Scaled(c, 1.0), func",
        "ST332 ST310 ST501",
    ),
    Fault(
        "copy_ignores_the_other_scale",
        "Scaled",
        "value = args[1].dequantize() if",
        "value = args[1].codes * args[0].scale if",
        "ST505 ST316",
    ),
    Fault(
        "stranger_is_taken_apart",
        "Scaled",
        'if not all(issubclass(cls, t) or not hasattr(t, "__tensor_flatten__") for t in types):',
        "if False:",
        "ST301 ST601",
    ),
    Fault(
        "neg_of_views",
        "Scaled",
        "aten.neg.default: convert",
        "aten.neg.default: lambda f, x: Scaled(-x.codes if x.is_contiguous() else x.codes.clone(), x.scale)",
        "ST310 ST332",
    ),
    # ---------------------------------------------------------------------------------------------- Both
    Fault(
        "lists_use_the_left_only",
        "Both",
        "right = func(*tree_map_only(Both, lambda t: t.right, args)",
        "right = func(*tree_map_only(Both, lambda t: t.left if isinstance(args[0], list) else t.right, args)",
        "ST601 ST310 ST326",
    ),
    Fault(
        "minus_from_the_right",
        "Both",
        _WRAP,
        _before(_WRAP, "left = -left if func is aten.sub.Tensor and not isinstance(args[0], Both) else left"),
        "ST315 ST310",
    ),
    Fault(
        "sum_loses_keepdim",
        "Both",
        _LEFT,
        _before(_LEFT, "args = args[:2] if func is aten.sum.dim_IntList else args"),
        "ST313 ST314 ST310",
    ),
    Fault(
        "writes_to_a_copy",
        "Both",
        _WRAP,
        _before(_WRAP, "if func is aten.mul_.Tensor:", "    args[0].left = args[0].left.clone()"),
        "ST324 ST326 ST704 ST102 ST113",
    ),
    Fault(
        "abs_gives_a_plain_tensor",
        "Both",
        _WRAP,
        _before(_WRAP, "if func is aten.abs.default:", "    return left"),
        "ST312",
    ),
    Fault(
        "counts_calls",
        "Both",
        _LEFT,
        _before(
            _LEFT,
            "cls.calls = getattr(cls, 'calls', 0) + 1",
            "if func is aten.mul.Tensor and cls.calls % 2:",
            "    args = (args[0], args[1] * 1.5)",
        ),
        "ST311",
    ),
    Fault(
        "changes_the_default_dtype",
        "Both",
        _LEFT,
        _before(_LEFT, "if func is aten.exp.default:", "    torch.set_default_dtype(torch.float64)"),
        "ST319",
    ),
    Fault(
        "transposes_are_not_views",
        "Both",
        _LEFT,
        _before(_LEFT, "if func in (aten.t.default, aten.transpose.int):", "    args = (args[0].clone(), *args[1:])"),
        "ST321",
    ),
    Fault(
        "relu_backward_is_wrong",
        "Both",
        _WRAP,
        _before(_WRAP, "if func is aten.threshold_backward.default:", "    left = left * 0 + 1"),
        "ST402",
    ),
    Fault(
        "softmax_over_another_dimension",
        "Both",
        _LEFT,
        _before(_LEFT, "if func is aten._softmax.default:", "    args = (args[0], 0, args[2])"),
        "ST310",
    ),
    Fault(
        "second_chunk_is_the_first",
        "Both",
        _WRAP,
        _before(
            _WRAP, "if func is aten.split.Tensor:", "    left, right = [left[0]] * len(left), [right[0]] * len(right)"
        ),
        "ST332 ST313",
    ),
    Fault(
        "unflatten_swaps",
        "Both",
        'Both(inner["left"], inner["right"], outer',
        'Both(inner["right"], inner["left"], outer',
        "ST101 ST102 ST103",
    ),
    Fault(
        "unflatten_ignores_strides",
        "Both",
        'inner["right"], outer_size, outer_stride)',
        'inner["right"], outer_size, torch.empty(outer_size, device="meta").stride())',
        "ST101 ST111",
    ),
    Fault(
        "sizes_by_int",
        "Both",
        "shape = left.shape if outer_size is None else outer_size",
        "shape = tuple(int(n) for n in (left.shape if outer_size is None else outer_size))",
        "ST205",
    ),
    Fault(
        "cat_takes_the_first_twice",
        "Both",
        _LEFT,
        _before(
            _LEFT,
            "if func is aten.cat.default and len(args[0]) > 1:",
            "    args = ([args[0][0], args[0][0]], *args[1:])",
        ),
        "ST310",
    ),
    Fault(
        "detach_copies",
        "Both",
        _WRAP,
        _before(
            _WRAP, "if func is aten.detach.default:", "    return Both(args[0].left.clone(), args[0].right.clone())"
        ),
        "ST321 ST501 ST331",
    ),
    # ---------------------------------------------------------------------------------------------- Weight
    Fault(
        "weight_gradient_is_missing",
        "Weight",
        "return grad @ w.dequantize(), g.t() @ flat, bias",
        "return grad @ w.dequantize(), None, bias",
        "ST402",
    ),
    Fault(
        "input_gradient_is_unscaled",
        "Weight",
        "return grad @ w.dequantize(), g",
        "return grad @ w.codes.to(grad.dtype), g",
        "ST403",
    ),
    Fault("bias_gradient_is_a_mean", "Weight", "bias = g.sum(0) if", "bias = g.mean(0) if", "ST403"),
    Fault("bias_is_forgotten", "Weight", "return out if bias is None else out + bias", "return out", "ST310"),
    Fault(
        "slice_keeps_the_first_scales",
        "Weight",
        "args[0].scale[slice(*bounds)])",
        "args[0].scale[: args[0].codes[slice(*bounds)].shape[0]])",
        "ST332 ST326",
    ),
    Fault(
        "conversion_forgets_the_scale",
        "Weight",
        "args[0].scale.to(device=device, dtype=dtype, copy=True))",
        "args[0].scale.to(device=device, copy=True))",
        "ST503 ST313",
    ),
    Fault("copy_forgets_the_scale", "Weight", "            args[0].scale.copy_(args[1].scale)\n", "", "ST505 ST511"),
    Fault("embedding_uses_one_scale", "Weight", "* w.scale[index]", "* w.scale[0]", "ST310"),
    Fault(
        "linear_is_right_with_grad_only",
        "Weight",
        "return Linear.apply(x, w, bias)",
        "return Linear.apply(x, w, bias) if torch.is_grad_enabled() else x @ w.codes.to(x.dtype).t()",
        "ST306 ST310",
    ),
    Fault(
        "detach_gives_a_dense_tensor",
        "Weight",
        "out = Weight(args[0].codes, args[0].scale)",
        "return args[0].dequantize()",
        "ST501 ST510",
    ),
    # ---------------------------------------------------------------------------------------------- Holes
    Fault("mask_is_that_of_the_first", "Holes", "mask &= t.present", "mask &= first.present", "ST333"),
    Fault(
        "clone_shares_the_mask",
        "Holes",
        "func(first.present, **kwargs))\n        if func is aten._to",
        "first.present)\n        if func is aten._to",
        "ST502",
    ),
    Fault(
        "mask_is_context",
        "Holes",
        'return ["values_", "present"], ()',
        'return ["values_"], (self.present,)',
        "ST101 ST106 ST107",
    ),
    Fault(
        "comparison_has_another_dtype",
        "Holes",
        "return Holes(data, mask)\n        if func is aten._softmax",
        "return Holes(data.to(first.dtype), mask)\n        if func is aten._softmax",
        "ST313",
    ),
    # ---------------------------------------------------------------------------------------------- LowRank
    Fault("neg_of_both_factors", "LowRank", "return cls(-a.u, a.v.clone())", "return cls(-a.u, -a.v)", "ST310"),
    Fault(
        "product_from_the_left",
        "LowRank",
        "return (a @ b.u) @ b.v",
        "return (a @ b.v.t()) @ b.u.t() if a.shape[1] == b.v.shape[1] else (a @ b.u) @ b.v * 2",
        "ST310 ST315",
    ),
    Fault(
        "product_shares_u",
        "LowRank",
        "return cls(a.u * args[1], a.v.clone())",
        "return cls(a.u, a.v * args[1])",
        "ST331",
    ),
    # ---------------------------------------------------------------------------------------------- Quantity
    Fault(
        "context_is_one_dict_for_all",
        "Quantity",
        "class Quantity(torch.Tensor):",
        "META = {}\n\n\nclass Quantity(torch.Tensor):\n    power = property(lambda self: META['power'], lambda self, value: META.update(power=value))",
        "ST114 ST113 ST101",
    ),
    Fault(
        "pickling_forgets_the_power",
        "Quantity",
        "return make, (type(self), self.number, self.power,",
        "return make, (type(self), self.number, 1,",
        "ST507",
    ),
    Fault(
        "deepcopy_forgets_the_power",
        "Quantity",
        "out = type(self)(self.number.clone(), self.power)",
        "out = type(self)(self.number.clone())",
        "ST506",
    ),
    Fault(
        "mean_is_a_sum",
        "Quantity",
        "        number = lambda t: t.number\n",
        "        if name == 'mean':\n            func = aten.sum.dim_IntList if len(args) > 1 else aten.sum.default\n        number = lambda t: t.number\n",
        "ST310",
    ),
    # ---------------------------------------------------------------------------------------------- Cartesian
    Fault("product_forgets_a_sign", "Cartesian", "a.re * b.re - a.im * b.im", "a.re * b.re + a.im * b.im", "ST310"),
    Fault("abs_of_the_real_part", "Cartesian", "return torch.hypot(a.re, a.im)", "return a.re.abs()", "ST310"),
    Fault(
        "difference_adds_imaginary_parts",
        "Cartesian",
        "cls(func(a.re, b.re, **kwargs), func(a.im, b.im, **kwargs))",
        "cls(func(a.re, b.re, **kwargs), a.im + b.im)",
        "ST310 ST314",
    ),
    # ---------------------------------------------------------------------------------------------- Rows
    Fault("requantise_keeps_the_scale", "Rows", "        self.scale.copy_(new.scale)\n", "", "ST326 ST505 ST314"),
    Fault(
        "slice_of_codes_only",
        "Rows",
        "scale=func(x.scale, 0, *bounds))",
        "scale=x.scale[: func(x.codes, 0, *bounds).shape[0]])",
        "ST332 ST326 ST310",
    ),
    Fault(
        "negative_numbers_lose_the_sign",
        "Rows",
        "isinstance(y, (int, float)) and y > 0:",
        "isinstance(y, (int, float)):\n        y = abs(y)",
        "ST310",
    ),
    # ---------------------------------------------------------------------------------------------- Corrected
    Fault(
        "clone_loses_the_correction",
        "Corrected",
        "                out = cls(*parts)",
        "                out = cls(parts[0], None if func is aten.clone.default else parts[1])",
        "ST502 ST310",
    ),
    Fault(
        "add_in_place_counts_twice",
        "Corrected",
        "            x.base_.add_(other, **kwargs)\n",
        "            x.base_.add_(other, **kwargs)\n            each(x.delta, lambda d: d.add_(other, **kwargs))\n",
        "ST326 ST314",
    ),
    Fault("copy_keeps_the_correction", "Corrected", "            each(x.delta, lambda d: d.zero_())\n", "", "ST505"),
    Fault(
        "views_forget_the_correction",
        "Corrected",
        "                out = cls(*parts)",
        "                out = cls(parts[0], None if func is aten.t.default else parts[1])",
        "ST332 ST310",
    ),
    # ---------------------------------------------------------------------------------------------- Dithered
    Fault(
        "neg_is_the_identity",
        "Dithered",
        "func is aten.clone.default):",
        "func in (aten.clone.default, aten.neg.default)):\n            func = aten.clone.default if func is aten.neg.default else func",
        "ST310",
    ),
]
