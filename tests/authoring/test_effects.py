"""What is read off the schemas agrees with torch's ``return_and_correct_aliasing``, for every ATen operation."""

from __future__ import annotations

import functools

import torch
from authored import Pair, randn
from torch.utils._python_dispatch import get_alias_info

from subclass_trace.authoring.effects import effects_of, finisher


@functools.cache
def overloads() -> list:
    found = []
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in getattr(packet, "overloads", list)():
            op = getattr(packet, overload)
            if isinstance(op, torch._ops.OpOverload) and torch._C._dispatch_has_kernel(op.name()):
                found.append(op)
    return found


def test_effects_are_those_that_torch_finds() -> None:
    compared = views = writes = 0
    for op in overloads():
        try:
            known = get_alias_info(op)
        except Exception:  # torch's own parser does not know every schema
            continue
        effects = effects_of(op)
        assert [a.position for a in effects.writes] == [k for k, a in enumerate(known.args) if a.is_write], op
        aliases = [(r.position, k) for k, r in enumerate(effects.results) if r is not None and not effects.replaced[k]]
        assert sorted(aliases) == sorted(known.read_only_alias_match_indexes), op
        assert effects.metadata == known.is_inplace_view_op
        if known.outs_write_aliases is not None:
            assert [known.args[r.position].alias_set for r in effects.results] == [
                {name} for name in known.outs_write_aliases
            ], op
        compared, views, writes = compared + 1, views + bool(aliases), writes + bool(effects.writes)
    assert compared > 1500 and views > 30 and writes > 800, (compared, views, writes)


def test_functional_operations_need_no_finish() -> None:
    for op in overloads():
        if not op._schema.is_mutable and not op.is_view and all(r.alias_info is None for r in op._schema.returns):
            assert finisher(op) is None, op


def test_views_share_storage_as_with_torch() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    programs = [
        lambda x: x.t(),
        lambda x: x.split(2)[1],
        lambda x: x.unbind(0)[0],
        lambda x: x.view(2, 8),
        lambda x: x.chunk(2, 1)[0],
        lambda x: x.diagonal(),
        lambda x: x.unfold(0, 2, 1),
        lambda x: x.permute(1, 0).expand(3, 4, 4),
        lambda x: x.detach(),
        lambda x: x.squeeze().select(0, 1),
        lambda x: x.as_strided((2, 2), (4, 1)),
    ]
    for program in programs:
        for cls in (Pair, TwoTensor):
            x = cls(randn(4, 4), randn(4, 4))
            y = program(x)
            assert y.untyped_storage()._cdata == x.untyped_storage()._cdata
