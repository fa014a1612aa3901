"""A fourth round of wrapper classes with one fault each: LoRA and FP8 weights, flags, hidden dimensions, ragged rows.

Written and frozen together with the third round, and first tried after the misses of that one were mended.
"""

from __future__ import annotations

from strangers import Fault

FOURTH = [
    # ---------------------------------------------------------------------------------------------- Lora
    Fault(
        "number_leaves_the_factors",
        "Lora",
        "func(x.up, rest[0]), x.down.clone()",
        "x.up.clone(), x.down.clone()",
        "ST310",
    ),
    Fault("linear_forgets_the_strength", "Lora", "@ w.up.t() * w.strength", "@ w.up.t()", "ST310"),
    Fault(
        "gradient_through_the_base_only", "Lora", "return grad @ w.to_dense(),", "return grad @ w.base,", "ST403 ST402"
    ),
    Fault(
        "step_counts_twice",
        "Lora",
        "func(x.base, y, **kwargs)\n",
        "func(x.base, y, **kwargs)\n            func(x.base, y, **kwargs)\n",
        "ST326 ST513",
    ),
    Fault(
        "conversion_of_the_base_only",
        "Lora",
        "func(x.up, **thin), func(x.down, **thin)",
        "x.up.clone(), x.down.clone()",
        "ST503 ST313 ST310",
    ),
    Fault("unflatten_forgets_the_strength", "Lora", 'inner["down"], context[0])', 'inner["down"])', "ST101"),
    # ---------------------------------------------------------------------------------------------- Float8
    Fault("product_with_one_scale", "Float8", "(a.scale * b.scale)", "a.scale", "ST310"),
    Fault(
        "weight_gradient_of_codes",
        "Float8",
        "grad.t() @ x if",
        "grad.t() @ Float8.quantize(x).qdata.float() if",
        "ST403 ST402",
    ),
    Fault("conversion_shows_the_old_dtype", "Float8", "shown=dtype or x.shown)", "shown=x.shown)", "ST503 ST313"),
    Fault("negative_numbers_are_positive", "Float8", "scale=x.scale * y)", "scale=x.scale * abs(y))", "ST310"),
    Fault(
        "bias_in_training_only",
        "Float8",
        "return out if bias is None else out + bias",
        "return out if bias is None or not torch.is_grad_enabled() else out + bias",
        "ST306",
    ),
    Fault("linear_flattens_batches", "Float8", ".view(*x.shape[:-1], -1)", "", "ST313"),
    # ---------------------------------------------------------------------------------------------- Flipped
    Fault(
        "reductions_do_not_look_at_the_flag",
        "Flipped",
        "        seen = tree_map_only(cls, ",
        "        if func is aten.sum.dim_IntList:\n            return cls(func(x.data_, *args[1:], **kwargs))\n        seen = tree_map_only(cls, ",
        "ST310 ST313",
    ),
    Fault("flags_may_differ", "Flipped", "and both and x.flipped == y.flipped and", "and both and", "ST316 ST310"),
    Fault(
        "unflatten_forgets_the_flag", "Flipped", 'Flipped(inner["data_"], context)', 'Flipped(inner["data_"])', "ST101"
    ),
    Fault("unary_forgets_the_flag", "Flipped", "cls(func(x.data_), x.flipped)", "cls(func(x.data_))", "ST313 ST310"),
    Fault(
        "product_of_transposes_in_order",
        "Flipped",
        "(y.data_ @ x.data_).t()",
        "(x.data_ @ y.data_).t()",
        "ST310 ST317 ST315 ST313",
    ),
    Fault("transpose_copies", "Flipped", "cls(x.data_.view_as(x.data_), not", "cls(x.data_.clone(), not", "ST321"),
    # ---------------------------------------------------------------------------------------------- Ensemble
    Fault(
        "negative_dimensions_are_not_shifted",
        "Ensemble",
        "return dim % max(rank, 1) + 1",
        "return dim + 1",
        "ST310 ST313 ST317 ST332",
    ),
    Fault(
        "unsqueeze_at_the_end_is_before", "Ensemble", "shift(dim, x.dim() + 1))", "shift(dim, x.dim()))", "ST313 ST310"
    ),
    Fault(
        "sum_over_members",
        "Ensemble",
        "x.stack.reshape(x.stack.shape[0], -1).sum(1, **kwargs)",
        "x.stack.sum(**kwargs).expand(x.stack.shape[0])",
        "ST310",
    ),
    Fault(
        "ranks_are_not_brought_together",
        "Ensemble",
        "func(*[lifted(t, rank) for t in args], **kwargs)",
        "func(*[t.stack if isinstance(t, Ensemble) else t for t in args], **kwargs)",
        "ST317 ST310 ST313",
    ),
    Fault(
        "softmax_over_members",
        "Ensemble",
        '        raise NotImplementedError("numbers have no dimensions")\n',
        '        raise NotImplementedError("numbers have no dimensions")\n    if func is aten._softmax.default:\n        return func(x.stack, 0, *args)\n',
        "ST310",
    ),
    Fault(
        "cat_of_members",
        "Ensemble",
        "func([t.stack for t in tensors], shift(dim, rank))",
        "func([t.stack for t in tensors], dim)",
        "ST313 ST310",
    ),
    # ---------------------------------------------------------------------------------------------- Ragged
    Fault(
        "mean_of_the_longest",
        "Ragged",
        "first.padded().sum(1) / first.lengths()",
        "first.padded().sum(1) / first.shape[1]",
        "ST310 ST333",
    ),
    Fault("maximum_of_padding", "Ragged", 'first.padded(-float("inf"))', "first.padded()", "ST333 ST310"),
    Fault(
        "dense_numbers_in_their_order",
        "Ragged",
        "t.expand(self.shape)[self.places()]",
        "t.expand(self.shape).reshape(-1)[: self.values_.shape[0]]",
        "ST310 ST315",
    ),
    Fault(
        "offsets_are_converted_too",
        "Ragged",
        "func(first.offsets, **device)",
        "func(first.offsets, **kwargs)",
        "ST503 ST310 ST317",
    ),
    Fault("unflatten_forgets_the_layout", "Ragged", "outer_size, context[0])", "outer_size, 0)", "ST101"),
    Fault(
        "copy_replaces_the_values",
        "Ragged",
        "first.values_.copy_(first.beside(rest[0].expand(first.shape) if not isinstance(rest[0], cls) else rest[0]))",
        "first.values_ = first.beside(rest[0].expand(first.shape) if not isinstance(rest[0], cls) else rest[0]).clone()",
        "ST505 ST324 ST321 ST326 ST313",
    ),
]
