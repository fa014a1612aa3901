"""Save, save packed, or compute again: one minimum cut with three ordered labels for each row.

A row is *computed again*, *exact* in the backward, or at least *available*, perhaps rounded; each implies the next.
Reading a row in the backward asks for the last; computing a row of the forward again from it asks for the exact value, so that
rounding errors never compound; views pass on what they are given. Saving exact cuts between the first two labels at the
row's weight, saving packed between the last two at its packed weight. Ordered labels with such costs are submodular,
which is why the best choice is still a minimum cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .flow import INF, Flow
from .table import Table

#: a tensor on the CPU takes no memory of the device, but its way there is not free
_TRANSFER = 0.05


def labelled_cut(
    t: Table,
    weights: Sequence[float],
    banned: Sequence[bool],
    again: Sequence[bool],
    needed: Sequence[bool],
    forms: Mapping[int, str],
    share: Mapping[int, float],
) -> tuple[list[int], dict[int, str]]:
    """The rows to save, and the form of those that are packed.

    Args:
        forms: row -> form that it may be packed in; ``share``: row -> packed bytes over bytes.
        weights, banned, again, needed: see `flow.cut`.

    Raises:
        Infeasible: no cut of finite weight.
    """
    rows = [i for i in t.rows if not t.late[i]]
    place = {i: 3 * k for k, i in enumerate(rows)}
    source, sink = 3 * len(rows), 3 * len(rows) + 1
    flow = Flow(3 * len(rows) + 2, source, sink)
    for i in rows:
        first, exact, rough = place[i], place[i] + 1, place[i] + 2
        offload = forms.get(i) == "cpu"
        if t.view[i]:
            flow.edge(first, exact, INF)
        else:
            flow.edge(first, exact, weights[i] * _TRANSFER if offload else weights[i])
        rounded = i in forms and not offload
        flow.edge(exact, rough, weights[i] * share[i] if rounded else 0.0 if t.view[i] else INF)
        flow.edge(exact, first, INF)
        flow.edge(rough, exact, INF)
        if banned[i]:
            flow.edge(source, first, INF)
        if again[i]:
            flow.edge(first, sink, INF)
        if needed[i]:
            flow.edge(exact, sink, INF)
        for u in t.users[i]:
            if u not in place:
                flow.edge(rough, sink, INF)
            elif t.view[u]:
                flow.edge(exact, place[u] + 1, INF)
                flow.edge(rough, place[u] + 2, INF)
            else:  # what the forward never runs belongs to the backward proper: it may read rounded values
                flow.edge(exact if t.early[u] else rough, place[u], INF)
    side = flow.sink_side()
    saved, packed = [], {}
    for i in rows:
        first, exact, rough = (side[place[i] + k] for k in range(3))
        if t.view[i] or first or not rough:
            continue
        saved.append(i)
        if i in forms and (not exact or forms[i] == "cpu"):
            packed[i] = forms[i]
    return saved, packed
