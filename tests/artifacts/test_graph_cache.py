"""``cache="graph"``: all is traced; a partition is found by the graph, whatever code gave it, and by all that decides it."""

from __future__ import annotations

import copy
import errno
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import subclass_trace as st
from subclass_trace.artifacts import cache, graph_cache
from subclass_trace.artifacts.container import pack, unpack
from subclass_trace.cli import main
from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.zoo import TwoTensor


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache of the test's own."""
    monkeypatch.setenv("SUBCLASS_TRACE_CACHE_DIR", str(tmp_path / "cache"))
    for forget in (cache.opened.cache_clear, cache._warned.clear):
        forget()
    yield tmp_path / "cache"
    cache.opened.cache_clear()


def block(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = F.gelu(F.layer_norm(x @ w, (4,))) * x.sigmoid() + x
    return x


def same_block(given: Any, weight: Any, unused: int = 3) -> Any:
    """Other code for the same graph."""
    out = given
    while unused:
        normal = F.layer_norm(torch.matmul(out, weight), out.shape[-1:])
        out, unused = F.gelu(normal) * torch.sigmoid(out) + out, unused - 1
    return out


def dense(rows: int = 3, **kind: Any) -> tuple[torch.Tensor, ...]:
    return (
        torch.linspace(-1, 1, rows * 4, **kind).view(rows, 4).requires_grad_(),
        torch.linspace(0.1, 0.3, 16, **kind).view(4, 4).requires_grad_(),
    )


def wrapped(rows: int = 3) -> tuple[torch.Tensor, ...]:
    return tuple(TwoTensor(t.detach(), t.detach() + 1).requires_grad_() for t in dense(rows))


def step(function: Callable[..., Any], args: Any, seed: int = 0) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    result = function(*args)
    wanted = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    return [result, *torch.autograd.grad(result, wanted, torch.ones_like(result))]


def are_close(some: Any, others: Any) -> None:
    for a, b in zip(some, others, strict=True):
        for x, y in zip(leaves_of(a), leaves_of(b), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def region(function: Any, **options: Any) -> Any:
    return st.compile(
        function, frontend="trace", cache="graph", partitioner=options.pop("partitioner", "min_cut"), **options
    )


def found(function: Any, *calls: Any, **options: Any) -> int:
    """How many partitions a new region has found; it gives what eager mode does."""
    made = region(function, **options)
    for args in calls or (dense(),):
        for _ in range(2):
            same_args = copy.deepcopy(args)
            are_close(step(made, args), step(function, same_args))
            are_close(args, same_args)  # what was written
    count = re.search(r"(\d+) partitions were found", made.explain())
    assert count is not None
    return int(count[1])


def entries(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.stc"))


# ---------------------------------------------------------------------------------------------- hits
def dropped(x: Any, w: Any) -> Any:
    return F.dropout(block(x, w), 0.5).sin() + torch.rand_like(x) * w.sum()


def checkpointed(x: Any, w: Any) -> Any:
    return checkpoint(block, x, w, use_reentrant=False).exp()


def normed(x: Any, w: Any, mean: Any, var: Any) -> Any:
    return F.batch_norm(x @ w, mean, var, training=True).sin()


def writes(x: Any, w: Any, buffer: Any) -> Any:
    y = buffer.expand(x.shape).cos() * (x @ w).sin()
    buffer.mul_(2)
    return y


def state() -> tuple[torch.Tensor, ...]:
    return (*dense(), torch.zeros(4), torch.ones(4))


@pytest.mark.parametrize(
    "options",
    [{}, {"activation_memory_budget": 0}, {"partitioner": "default"}, {"partitioner": "torch_min_cut"}],
    ids=str,
)
@pytest.mark.parametrize(
    ("function", "args"),
    [(block, dense), (block, wrapped), (dropped, dense), (checkpointed, dense), (checkpointed, wrapped), (normed, state),
     (writes, lambda: (*dense(), torch.ones(4)))],
)  # fmt: skip
@pytest.mark.sweep(every=4)
def test_an_equal_graph_is_found(function: Any, args: Any, options: Any, directory: Path) -> None:
    assert found(function, args(), **options) == 0
    kept = entries(directory)
    if function in (writes, normed) and "torch" in str(options):  # its clones are nodes that no trace has
        assert not kept
        return
    assert len(kept) == 1
    assert found(function, args(), **options) == 1 and entries(directory) == kept


@pytest.mark.parametrize(("function", "args"), [(block, wrapped), (writes, lambda: (*dense(), torch.ones(4)))])
def test_it_is_what_was_found(function: Any, args: Any, directory: Path) -> None:
    halves = []
    for _ in range(2):
        made = region(function, activation_memory_budget=0)
        step(made, args())
        graphs = made.specializations[0].graphs
        assert bool(graphs.first.cloned) == (function is writes)
        halves.append(
            [
                [[n.name for n in nodes] for nodes in (h.inputs, h.body, h.outputs)]
                for h in (graphs.first, graphs.second)
            ]
        )
        saved = [(row.name, row.bytes, row.reason) for row in made.specializations[0].saved]
        halves[-1].append(saved)
    assert halves[0] == halves[1]


def test_other_code_with_the_same_graph(directory: Path) -> None:
    found(block, wrapped())
    assert found(same_block, wrapped()) == 1 and found(lambda a, b: block(a, b), wrapped()) == 1
    assert len(entries(directory)) == 1


@pytest.mark.long
def test_sizes_that_are_symbols(directory: Path) -> None:
    calls = [wrapped(3), wrapped(4)]
    assert found(block, *calls) == 0
    assert found(block, *calls, wrapped(7)) == 2
    assert found(block, wrapped(3), wrapped(5)) == 1  # other numbers decide what is saved
    assert found(block, wrapped(6), dynamic=True) == 0 and found(block, wrapped(6), dynamic=True) == 1


def test_tangents_that_come_later(directory: Path) -> None:
    def pair(x: Any, w: Any) -> Any:
        y = block(x, w)
        return y, (y * w.sum()).tanh()

    for k in range(2):
        made = region(pair)
        for which in ((0, 1), (0,), (1,)):
            args = wrapped()
            results = [[f(*args)[i].sum() for i in which] for f in (made, pair)]
            grads = [torch.autograd.grad(r, args, [torch.ones_like(t) for t in r]) for r in results]
            are_close(*grads)
        assert f"{k} partitions were found" in made.explain()


# ---------------------------------------------------------------------------------------------- misses
def test_what_decides_it_is_another_one(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def clamped(x: Any, w: Any) -> Any:
        return block(x, w).clamp(max=0.5)

    parameter = torch.nn.Parameter(dense()[1].detach())
    assert found(block) == 0
    others: list[Callable[[], int]] = [
        lambda: found(block, dense(5)),
        lambda: found(block, dense(dtype=torch.float64)),
        lambda: found(block, (dense()[0].detach(), dense()[1])),
        lambda: found(block, (dense()[0].detach().t().contiguous().t().requires_grad_(), dense()[1])),
        lambda: found(block, (dense()[0], parameter)),
        lambda: found(block, activation_memory_budget=0.5),
        lambda: found(block, activation_memory_budget=0.6),
        lambda: found(block, partitioner="default"),
        lambda: found(block, partitioner=st.MinCut(recompute=False)),
        lambda: found(block, partitioner="torch_min_cut"),
        lambda: found(block, decompositions={torch.ops.aten.sigmoid: lambda x: 1 / (1 + (-x).exp())}),
        lambda: found(clamped),
        lambda: found(lambda x, w: clamped(x, w) * 2),
        lambda: found(lambda x, w: clamped(x, w) * 3),
        lambda: found(checkpointed),
    ]
    for k, other in enumerate(others):
        assert other() == 0, k
    for k, other in enumerate(others):
        assert other() == 1, k
    assert found(block) == 1
    for owner, name, value in ((torch, "__version__", "0.0"), (graph_cache, "package_digest", lambda: "edited")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, value)
            assert (found(block), found(block)) == (0, 1), name


def test_a_partitioner_of_ones_own(directory: Path) -> None:
    from functorch.compile import default_partition

    made = region(block, partitioner=default_partition)
    step(made, dense())
    assert "the code of a partitioner is not compared" in made.explain() and not entries(directory)


# ---------------------------------------------------------------------------------------------- entries that are no partition
def doctored(directory: Path, change: Callable[[Any], None]) -> None:
    (name,) = entries(directory)
    header, (data,) = unpack((directory / name).read_bytes())
    change(data["partition"])
    (directory / name).write_bytes(pack(header, [{**data, "constants": {}}]))


def mutated(data: Any, drawn: random.Random) -> None:
    rows = data[drawn.choice([*data])]
    where = drawn.randrange(len(rows) + 1)
    value = drawn.choice([-1, 0, 1, 10**9, True, None, "0", 1.0, [0], drawn.randrange(80)])
    kind = drawn.randrange(6)
    if kind == 0 or not rows:
        rows.insert(where, value)
    elif kind == 1:
        del rows[where % len(rows)]
    elif kind == 2:
        rows[where % len(rows)] = value
    elif kind == 3:
        a, b = (drawn.randrange(len(rows)) for _ in range(2))
        rows[a], rows[b] = rows[b], rows[a]
    elif kind == 4:
        rows.append(rows[where % len(rows)])
    else:
        data[drawn.choice([*data])] = value if drawn.random() < 0.5 else [*rows]


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("seed", range(4))
def test_mutations_are_misses_or_harmless(directory: Path, seed: int) -> None:
    """Under a right digest: what is accepted computes what eager mode does."""
    drawn, misses = random.Random(seed), 0
    args = (*wrapped(2), torch.ones(4))

    def function(x: Any, w: Any, buffer: Any) -> Any:
        y = F.dropout((x @ w).sin() * (x @ w).cos(), 0.5) + buffer.expand(x.shape).cos() * x
        buffer.mul_(2)
        return y.sin()

    found(function, args, activation_memory_budget=0)
    (name,) = entries(directory)
    whole = (directory / name).read_bytes()
    for _ in range(30):
        (directory / name).write_bytes(whole)
        for _ in range(drawn.randint(1, 2)):
            doctored(directory, lambda data: mutated(data, drawn) if isinstance(data, dict) else None)
        misses += not found(function, copy.deepcopy(args), activation_memory_budget=0)
        assert (directory / name).exists() or entries(directory)
    assert misses > 20


def test_what_computes_something_else_is_refused(directory: Path) -> None:
    """Each of these would run, with other numbers."""

    def draws(x: Any, w: Any) -> Any:
        return (torch.rand_like(x) - torch.rand_like(x)).sin() * x * w.sum().exp()

    def merge(data: Any) -> None:
        a, b = (k for k, name in enumerate(names) if name.startswith("rand_like"))
        data["merged"].append([b, a])
        data["forward"].remove(b)

    def draw_again(data: Any) -> None:
        (first, *_) = (k for k, name in enumerate(names) if name.startswith("rand_like"))
        data["backward"].insert(0, first)

    for change in (merge, draw_again):
        assert found(draws) == 0
        made = region(draws)
        step(made, dense())
        names = [n.name for n in made.specializations[0].graphs.first.owner.graph.nodes]
        doctored(directory, change)
        made = region(draws)
        are_close(step(made, dense()), step(draws, dense()))
        assert "no partition of this graph" in made.explain()
        for name in entries(directory):
            (directory / name).unlink()


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-7], lambda b: b"", lambda b: b[:60] + bytes([b[60] ^ 1]) + b[61:], lambda b: b + b"x"]
)
def test_what_is_damaged_goes(damage: Any, directory: Path) -> None:
    found(block)
    (name,) = entries(directory)
    whole = (directory / name).read_bytes()
    (directory / name).write_bytes(damage(whole))
    assert found(block) == 0
    assert [(directory / name).read_bytes() for name in entries(directory)] == [whole]


def test_a_full_disk_is_one_warning(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.warns(UserWarning, match="cache") as caught:
        assert found(block) == 0 and found(block) == 0
    assert len(caught) == 1 and not entries(directory)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.long
def test_inductor_compiles_what_was_found(dynamic: Any, directory: Path) -> None:
    assert found(block, dense(), backend="inductor", dynamic=dynamic) == 0
    assert found(block, dense(), backend="inductor", dynamic=dynamic) == 1
    assert found(block, dense(), dynamic=dynamic) == 0


def test_the_command_knows_it(directory: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found(block)
    (name,) = entries(directory)
    assert main(["cache", "list"]) == 0 and "partition of" in capsys.readouterr().out
    assert main(["cache", "verify"]) == 0 and main(["cache", "pack", str(tmp_path / "fleet")]) == 0
    assert main(["cache", "clear"]) == 0 and not entries(directory)
    assert main(["cache", "unpack", str(tmp_path / "fleet")]) == 0 and entries(directory) == [name]
    assert found(block) == 1


def test_a_region_that_is_reset(directory: Path) -> None:
    made = region(block)
    step(made, dense())
    made.reset()
    step(made, dense())
    assert "1 partitions were found, 0 were kept" in made.explain()


def test_other_values_are_refused() -> None:
    with pytest.raises(st.OptionError, match="graph"):
        st.compile(block, cache="graphs")
