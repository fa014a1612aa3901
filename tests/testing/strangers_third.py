"""A third round of wrapper classes with one fault each: what authors of weights, optimizers, sharded and tracked tensors get wrong.

Written and frozen before the kit was run on any of them: see `test_strangers.py` for how many it judged rightly.
"""

from __future__ import annotations

from strangers import Fault, _before

THIRD = [
    # ---------------------------------------------------------------------------------------------- Groups
    Fault("number_leaves_the_zero", "Groups", "x.scale * y, x.zero * y", "x.scale * y, x.zero.clone()", "ST310"),
    Fault(
        "rows_keep_the_first_zeros",
        "Groups",
        "func(x.zero, 0, *bounds)",
        "x.zero[: len(func(x.zero, 0, *bounds))]",
        "ST332",
    ),
    Fault(
        "bias_learns_if_the_weight_does",
        "Groups",
        "flat.sum(0) if ctx.needs_input_grad[2]",
        "flat.sum(0) if ctx.needs_input_grad[1]",
        "ST403",
    ),
    Fault(
        "copy_leaves_the_zero",
        "Groups",
        "    x.zero.copy_(y.zero)\n",
        "",
        "ST505 ST326",
    ),
    Fault(
        "flatten_forgets_the_group",
        "Groups",
        'inner["zero"], context[0])',
        'inner["zero"])',
        "ST101",
    ),
    Fault(
        "conversion_forgets_the_zero",
        "Groups",
        "moved.scale.to(dtype), moved.zero.to(dtype)",
        "moved.scale.to(dtype), moved.zero",
        "ST503 ST313 ST310",
    ),
    # ---------------------------------------------------------------------------------------------- State8
    Fault("addcmul_forgets_value", "State8", "x + y * z * value", "x + y * z", "ST314 ST326 ST513"),
    Fault("lerp_from_the_other_end", "State8", "x + (y - x) * weight", "y + (x - y) * weight", "ST326 ST310 ST513"),
    Fault("views_own_their_scales", "State8", "x.scale.view(-1))", "x.scale.view(-1).clone())", "ST324 ST321"),
    Fault(
        "conversion_keeps_the_dtype",
        "State8",
        'dtype=kwargs.get("dtype"), copy=True)',
        "copy=True)",
        "ST503 ST313",
    ),
    Fault(
        "deepcopy_shares_scales",
        "State8",
        "self.codes.clone(), self.scale.clone()",
        "self.codes.clone(), self.scale",
        "ST506",
    ),
    Fault("quotient_in_place_multiplies", "State8", "x.scale.div_(rest[0])", "x.scale.mul_(rest[0])", "ST326 ST310"),
    # ---------------------------------------------------------------------------------------------- RowSparse
    Fault(
        "abs_of_rows_that_add_up",
        "RowSparse",
        "if func is aten.neg.default:",
        _before(
            "if func is aten.neg.default:",
            "if func is aten.abs.default:",
            "    return cls(x.index.clone(), x.rows.abs(), x.shape)",
        ),
        "ST310",
    ),
    Fault(
        "gradient_step_forgets_alpha",
        "RowSparse",
        'y.rows.to(x.dtype), alpha=kwargs.get("alpha", 1))',
        "y.rows.to(x.dtype))",
        "ST314",
    ),
    Fault(
        "last_of_equal_indices_wins",
        "RowSparse",
        'return x.index_add_(0, y.index, y.rows.to(x.dtype), alpha=kwargs.get("alpha", 1))',
        'x[y.index] += y.rows.to(x.dtype) * kwargs.get("alpha", 1)\n            return x',
        "ST326 ST310 ST315",
    ),
    Fault("product_with_the_first_rows", "RowSparse", "x.rows * y[x.index]", "x.rows * torch.cat([y, y[:1]])", "ST310"),
    Fault(
        "height_from_the_index",
        "RowSparse",
        "cls, shape, dtype=rows.dtype",
        "cls, (int(index.max()) + 1, *rows.shape[1:]), dtype=rows.dtype",
        "ST201 ST205",
    ),
    Fault("neg_writes_into_its_operand", "RowSparse", "x.rows.neg()", "x.rows.neg_()", "ST331 ST311"),
    # ---------------------------------------------------------------------------------------------- Sharded
    Fault(
        "terms_are_not_added_before_relu",
        "Sharded",
        "        if func in NONLINEAR:\n            x = x.everywhere() if x.placement == TERMS else x\n",
        "        if func in NONLINEAR:\n",
        "ST310",
    ),
    Fault(
        "number_is_added_to_each_term",
        "Sharded",
        "isinstance(rest[0], (int, float)):\n            x = x.everywhere() if x.placement == TERMS else x\n",
        "isinstance(rest[0], (int, float)):\n",
        "ST310 ST315",
    ),
    Fault(
        "sum_of_columns_is_a_term",
        "Sharded",
        "            return x.each(func, *rest, **kwargs)\n        if func is aten.expand",
        "            out = x.each(func, *rest, **kwargs)\n            return Sharded(out.a, out.b, TERMS)\n        if func is aten.expand",
        "ST313 ST310",
    ),
    Fault(
        "placements_are_all_equal",
        "Sharded",
        "isinstance(other, Placement) and self.kind == other.kind",
        "isinstance(other, Placement)",
        "ST112 ST310 ST316",
    ),
    Fault(
        "copy_takes_shards_as_they_are",
        "Sharded",
        "y = like(rest[0], x)\n            x.a.copy_",
        "y = rest[0]\n            x.a.copy_",
        "ST505 ST317 ST326 ST316",
    ),
    Fault(
        "sum_of_the_first_shard",
        "Sharded",
        "return Sharded(a, b, TERMS if x.placement == ROWS else x.placement)",
        "return Sharded(a, a.clone(), COPY)",
        "ST310",
    ),
    # ---------------------------------------------------------------------------------------------- Tracked
    Fault(
        "journal_keeps_operands",
        "Tracked",
        "out = func(*inner[0], **inner[1])",
        "CACHE.setdefault(func, []).append(args)\n        out = func(*inner[0], **inner[1])",
        "ST805",
    ),
    Fault(
        "out_is_another_object",
        "Tracked",
        "return return_and_correct_aliasing(func, args, kwargs, out)",
        'return out if "out" in kwargs else return_and_correct_aliasing(func, args, kwargs, out)',
        "ST323 ST326",
    ),
    Fault(
        "lists_stay_wrapped",
        "Tracked",
        "inner = tree_map_only(cls, lambda t: t.data_, (args, kwargs))",
        "inner = [t.data_ if isinstance(t, cls) else t for t in args], tree_map_only(cls, lambda t: t.data_, kwargs)",
        "ST317",
    ),
    Fault(
        "keywords_are_dropped",
        "Tracked",
        "out = func(*inner[0], **inner[1])",
        "out = func(*inner[0])",
        "ST314 ST313",
    ),
    Fault(
        "origins_are_compared_by_identity",
        "Tracked",
        "return type(other) is Origin and (self.name, self.calls) == (other.name, other.calls)",
        "return self is other",
        "ST106",
    ),
    Fault(
        "repr_counts_as_a_call",
        "Tracked",
        '        return f"Tracked({self.data_}, {self.name_!r}, {self.calls + 0})"',
        '        self.calls += 1\n        return f"Tracked({self.data_}, {self.name_!r}, {self.calls})"',
        "ST804",
    ),
]
