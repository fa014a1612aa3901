"""C code that calls code of the user's: what that reads is compared, or the region is refused; what it writes is written."""

# What users write is under test.
# ruff: noqa: B905, C417, E741, RUF005, RUF017, UP031
from __future__ import annotations

import bisect
import collections
import contextlib
import copy
import functools
import heapq
import itertools
import math
import operator
import re
import statistics
import string
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import subclass_trace as st

CFG = {"n": 1}


def n(*args: Any, **kwargs: Any) -> Any:
    return CFG["n"]


class Obj:
    """Its special methods read a global."""

    def __init__(self, v: int) -> None:
        self.v = v

    def __lt__(self, other: Any) -> bool:
        return bool(self.v * CFG["n"] < other.v * CFG["n"])

    def __eq__(self, other: object) -> bool:
        return CFG["n"] == 2

    def __hash__(self) -> int:
        return 1

    def __add__(self, other: Any) -> Obj:
        return Obj(self.v + CFG["n"])

    __radd__ = __add__

    def __len__(self) -> int:
        return CFG["n"] + 3

    def __iter__(self) -> Any:
        return iter([CFG["n"]])

    __reversed__ = __iter__

    def __getitem__(self, k: int) -> int:
        if k > 2:
            raise IndexError
        return CFG["n"]

    def __contains__(self, key: object) -> bool:
        return CFG["n"] == 2

    def __bool__(self) -> bool:
        return CFG["n"] == 2

    def __float__(self) -> float:
        return float(CFG["n"])

    def __str__(self) -> str:
        return str(CFG["n"])

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(CFG["n"])

    def __copy__(self) -> Obj:
        return Obj(CFG["n"])

    def __deepcopy__(self, memo: Any) -> Obj:
        return Obj(CFG["n"])

    def __exit__(self, *error: Any) -> None:
        pass

    def __divmod__(self, other: Any) -> Any:
        return CFG["n"], 0

    __call__ = __index__ = __int__ = __round__ = __abs__ = __neg__ = __enter__ = __floor__ = __trunc__ = n
    __ceil__ = __pow__ = __matmul__ = n


class Miss(dict[Any, Any]):
    def __missing__(self, key: Any) -> Any:
        return CFG["n"]


class It:
    def __init__(self) -> None:
        self.k = 0

    def __iter__(self) -> It:
        return self

    def __next__(self) -> Any:
        self.k += 1
        if self.k > 3:
            raise StopIteration
        return CFG["n"]


class AtSubclass:
    v: int

    def __init_subclass__(cls) -> None:
        cls.v = CFG["n"]


class AtName:
    def __set_name__(self, owner: Any, name: str) -> None:
        owner.v = CFG["n"]


class Index(int):
    def __index__(self) -> int:
        return CFG["n"]


class Items(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return CFG["n"]

    def keys(self) -> Any:
        return ["a"]


READS: dict[str, Callable[[], Any]] = {
    "accumulate_pos": lambda: list(itertools.accumulate([1, 2, 3], lambda a, b: a + CFG["n"]))[-1],
    "accumulate_kw": lambda: list(itertools.accumulate([1, 2, 3], func=lambda a, b: a + CFG["n"]))[-1],
    "accumulate_init": lambda: list(itertools.accumulate([1, 2, 3], lambda a, b: a + CFG["n"], initial=4))[-1],
    "accumulate_op": lambda: list(itertools.accumulate([Obj(1), Obj(2)]))[-1].v,
    "groupby_pos": lambda: [k for k, g in itertools.groupby([1, 2, 3], n)][0],
    "groupby_kw": lambda: [k for k, g in itertools.groupby([1, 2, 3], key=n)][0],
    "reduce": lambda: functools.reduce(lambda a, b: a + CFG["n"], [1, 2, 3]),
    "cmp_to_key": lambda: sorted(
        [1, 2, 3], key=functools.cmp_to_key(lambda a, b: (a - b) * (1 if CFG["n"] == 1 else -1))
    )[0],
    "sorted_lt": lambda: sorted([Obj(1), Obj(2)])[0].v if CFG else 0,
    "sort_key": lambda: (lambda l: (l.sort(key=lambda v: v * (1 if CFG["n"] == 1 else -1)), l[0])[1])([1, 2, 3]),
    "max_lt": lambda: max([Obj(1), Obj(2)], key=lambda o: o.v * CFG["n"]).v * CFG["n"],
    "re_sub": lambda: len(re.sub("a", lambda m: "b" * CFG["n"], "aaa")),
    "re_sub_method": lambda: len(re.compile("a").sub(lambda m: "b" * CFG["n"], "aaa")),
    "defaultdict": lambda: collections.defaultdict(n)["x"],
    "defaultdict_lambda": lambda: collections.defaultdict(lambda: CFG["n"])["x"],
    "missing": lambda: Miss()["q"],
    "format_map": lambda: int("{q}".format_map(Miss())),
    "percent_map": lambda: int("%(q)s" % Miss()),
    "iter_sentinel": lambda: len(list(itertools.islice(iter(n, 9), 2))) * next(iter(n, 9)),
    "nlargest": lambda: heapq.nlargest(1, [1, 2, 3], key=lambda v: v * (1 if CFG["n"] == 1 else -1))[0],
    "merge": lambda: list(heapq.merge([1], [2], key=lambda v: v * (1 if CFG["n"] == 1 else -1)))[0],
    "bisect": lambda: bisect.bisect([1, 2, 3], 2, key=lambda v: v * CFG["n"]),
    "insort": lambda: (lambda l: (bisect.insort(l, 2, key=lambda v: v * (1 if CFG["n"] == 1 else -1)), l)[1].index(2))(
        [1, 3]
    ),
    "attrgetter": lambda: operator.methodcaller("__call__")(Obj(1)),
    "filter_none": lambda: len(list(filter(None, [Obj(1)]))),
    "any_obj": lambda: int(any([Obj(1)])),
    "all_obj": lambda: int(all([Obj(1)])),
    "sum_obj": lambda: sum([Obj(1), Obj(2)]).v,
    "in_list": lambda: int(3 in [Obj(1)]),
    "in_obj": lambda: int(3 in Obj(1)),
    "count_list": lambda: [Obj(1), Obj(2)].count(5),
    "index_list": lambda: [Obj(1), 5].index(5),
    "dict_eq_key": lambda: len({Obj(1): 1, Obj(2): 2}),
    "set_eq": lambda: len({Obj(1), Obj(2)}),
    "tuple_eq": lambda: int((Obj(1),) == (3,)),
    "list_eq": lambda: int([Obj(1)] == [3]),
    "len": lambda: len(Obj(1)),
    "list_of": lambda: list(Obj(1))[0],
    "tuple_of": lambda: tuple(Obj(1))[0],
    "star": lambda: [*Obj(1)][0],
    "unpack": lambda: (lambda a: a)(*Obj(1)),
    "int": lambda: int(Obj(1)),
    "float": lambda: float(Obj(1)),
    "index": lambda: [1, 2, 3, 4][Obj(1)],
    "range": lambda: len(range(Obj(1))),
    "slice": lambda: len([1, 2, 3][: Obj(1)]),
    "bool": lambda: int(bool(Obj(1))),
    "not": lambda: int(not Obj(1)),
    "if": lambda: 5 if Obj(1) else 6,
    "str": lambda: int(str(Obj(1))),
    "repr": lambda: int(repr(Obj(1))),
    "fstr": lambda: int(f"{Obj(1)}"),
    "fstr_r": lambda: int(f"{Obj(1)!r}"),
    "format": lambda: int(format(Obj(1))),
    "dotformat": lambda: int(f"{Obj(1)}"),
    "percent": lambda: int("%s" % Obj(1)),
    "join": lambda: int("".join(map(str, [Obj(1)]))),
    "repr_list": lambda: len(repr([Obj(1)] * CFG["n"])),
    "str_dict": lambda: int(str({1: Obj(1)})[4]),
    "copy": lambda: copy.copy(Obj(7)).v,
    "deepcopy": lambda: copy.deepcopy([Obj(7)])[0].v,
    "reversed": lambda: list(reversed(Obj(1)))[0],
    "round": lambda: round(Obj(1)),
    "abs": lambda: abs(Obj(1)),
    "neg": lambda: -Obj(1),
    "floor": lambda: math.floor(Obj(1)),
    "trunc": lambda: math.trunc(Obj(1)),
    "ceil": lambda: math.ceil(Obj(1)),
    "divmod": lambda: divmod(Obj(1), 1)[0],
    "pow": lambda: Obj(1) ** 2,
    "pow3": lambda: pow(Obj(1), 2, 3),
    "matmul": lambda: Obj(1) @ Obj(1),
    "sqrt": lambda: math.sqrt(Obj(1)),
    "math_sum": lambda: math.fsum([Obj(1)]),
    "math_gcd": lambda: math.gcd(Obj(1), 4),
    "hypot": lambda: math.hypot(Obj(1), 1),
    "prod": lambda: math.prod([Obj(1).v + CFG["n"]]),
    "with": lambda: (lambda: [contextlib.ExitStack().enter_context(Obj(1))][0])(),
    "length_hint": lambda: operator.length_hint(It()) + CFG["n"],
    "next_it": lambda: next(It()),
    "list_it": lambda: list(It())[0],
    "zip_it": lambda: list(zip(It(), [1]))[0][0],
    "enumerate_it": lambda: list(enumerate(It()))[0][1],
    "map_it": lambda: list(map(lambda a: a, It()))[0],
    "chain_it": lambda: list(itertools.chain(It()))[0],
    "chain_from": lambda: list(itertools.chain.from_iterable([It()]))[0],
    "sorted_it": lambda: sorted(It())[0],
    "sum_it": lambda: sum(It()),
    "max_it": lambda: max(It()),
    "dict_it": lambda: list(dict.fromkeys(It()))[0],
    "set_it": lambda: max(set(It())),
    "join_it": lambda: len("".join(str(a) for a in It())),
    "extend_it": lambda: (lambda l: (l.extend(It()), l[0])[1])([]),
    "deque_it": lambda: collections.deque(It())[0],
    "counter_it": lambda: list(collections.Counter(It()))[0],
    "star_it": lambda: max(*It()),
    "slice_assign": lambda: (lambda l: (l.__setitem__(slice(0, 1), It()), l[0])[1])([9]),
    "tee": lambda: next(itertools.tee(It())[0]),
    "cycle": lambda: next(itertools.cycle(It())),
    "islice": lambda: list(itertools.islice(It(), 1))[0],
    "takewhile": lambda: (list(itertools.takewhile(lambda v: v == CFG["n"], [1, 2]))[:1] == [1] and 5) or 6,
    "dropwhile": lambda: len(list(itertools.dropwhile(lambda v: v == CFG["n"], [1, 2]))),
    "filterfalse": lambda: list(itertools.filterfalse(lambda v: v == CFG["n"], [1, 2]))[0],
    "compress": lambda: len(list(itertools.compress([1], [Obj(1)]))),
    "zip_longest": lambda: list(itertools.zip_longest(It()))[0][0],
    "pairwise": lambda: list(itertools.pairwise(It()))[0][0],
    "product_it": lambda: list(itertools.product(It()))[0][0],
    "perm": lambda: list(itertools.permutations(It(), 1))[0][0],
    "comb": lambda: list(itertools.combinations(It(), 1))[0][0],
    "starmap": lambda: list(itertools.starmap(n, [(1,)]))[0],
    "repeat": lambda: next(itertools.repeat(Obj(1)))(),
    "count": lambda: next(itertools.count(int(Obj(1)))),
    "partial": lambda: functools.partial(n)(),
    "partial_obj": lambda: functools.partial(Obj(1))(),
    "call_obj": lambda: Obj(1)(),
    "op_call": lambda: operator.call(n) if hasattr(operator, "call") else n(),
    "itemgetter": lambda: operator.itemgetter(0)(Obj(1)),
    "op_contains": lambda: int(operator.contains(Obj(1), 3)),
    "op_index": lambda: operator.index(Obj(1)),
    "op_truth": lambda: int(operator.truth(Obj(1))),
    "op_eq": lambda: int(operator.eq(Obj(1), 3)),
    "op_countOf": lambda: operator.countOf([Obj(1)], 3),
    "lru": lambda: functools.lru_cache(n)(),
    "property": lambda: type("P", (), {"p": property(n)})().p,
    "property_fn": lambda: property(n).fget(),
    "singledispatch": lambda: functools.singledispatch(n)(1),
    "wraps": lambda: functools.wraps(n)(lambda: n())(),
    "staticmethod": lambda: type("P", (), {"p": staticmethod(n)}).p(),
    "classmethod": lambda: type("P", (), {"p": classmethod(n)}).p(),
    "getattr_def": lambda: getattr(types.SimpleNamespace(), "q", CFG["n"]),
    "setattr": lambda: (lambda o: (setattr(o, "v", CFG["n"]), o.v)[1])(Obj(3)),
    "vars": lambda: vars(Obj(CFG["n"]))["v"],
    "mean": lambda: statistics.mean([CFG["n"]] * 2),
    "template": lambda: int(string.Template("$q").substitute(q=Obj(1))),
    "type_new": lambda: type("Q", (), {"v": CFG["n"]}).v,
    "heapify": lambda: (lambda l: (heapq.heapify(l), l[0].v)[1])([Obj(1), Obj(2)]) * CFG["n"],
    "heappush": lambda: (lambda l: (heapq.heappush(l, Obj(5)), l[0].v)[1])([Obj(1)]) * CFG["n"],
    "update_kw": lambda: (lambda d: (d.update(a=Obj(1)), d["a"]())[1])({}),
    "dict_union": lambda: ({1: Obj(1)} | {2: 3})[1](),
    "hash": lambda: hash(Obj(1)) + CFG["n"],
    "list_lt": lambda: int([Obj(1)] < [Obj(2)]),
    "tuple_lt": lambda: int((Obj(1),) < (Obj(2),)) + CFG["n"],
    "min_default": lambda: min([], default=CFG["n"]),
    "str_join_gen": lambda: len("".join("x" for _ in range(CFG["n"]))),
    "genexp": lambda: sum(CFG["n"] for _ in range(2)),
    "str_translate": lambda: len("a".translate({97: "b" * CFG["n"]})),
    "translate_obj": lambda: len("ab".translate(type("M", (), {"__getitem__": lambda s, k: "x" * CFG["n"]})())),
    "bytes_obj": lambda: len(bytes(Obj(1))),
    "bytearray": lambda: len(bytearray(n())),
    "memo_sort": lambda: (sorted("ab", key=lambda c: ord(c) * (1 if CFG["n"] == 1 else -1))[0] == "a" and 4) or 5,
    "complex": lambda: complex(Obj(1)).real,
    "round_n": lambda: round(Obj(1), 1),
    "init_subclass": lambda: type("X", (AtSubclass,), {}).v,
    "set_name": lambda: type("X", (), {"a": AtName()}).v,  # type: ignore[attr-defined]
    "index of an int": lambda: [1, 2, 3, 4][Index(1)],
    "** of a dict": lambda: (lambda a: a)(**Items(a=9)),
    "merge of a dict": lambda: {**Items(a=9)}["a"],
    "dict of a dict": lambda: dict(Items(a=9))["a"],
    "update by a dict": lambda: (lambda d: (d.update(Items(a=9)), d["a"])[1])({}),
    "OrderedDict of a dict": lambda: collections.OrderedDict(Items(a=9))["a"],
    "format_map of a dict": lambda: int("{a}".format_map(Items(a=9))),
    "% of a dict": lambda: int("%(a)s" % Items(a=9)),
}


def called(region: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, or that it is refused."""
    try:
        return region(*args).tolist()
    except st.SubclassTraceError:
        return None


@pytest.mark.parametrize("name", READS)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.sweep(every=3)
def test_what_it_reads_is_compared(name: str) -> None:
    read = READS[name]
    region, right = st.compile(lambda x: x * read(), frontend="trace"), []
    for CFG["n"] in (1, 2, 1, 3):
        found = called(region, torch.ones(2))
        right.append(found is not None)
        assert found in (None, (torch.ones(2) * read()).tolist()), CFG
    assert all(right) or not any(right)


# ---------------------------------------------------------------------------------------------- what is written
def bump(d: dict[str, Any], k: int = 1) -> dict[str, Any]:
    d["n"] += k
    return d


def bumps(x: Any, d: dict[str, Any]) -> Any:
    bump(d)
    return x.sin()


class Counts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, d: Any) -> Any:
        bump(d)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g, None


class CountsFirst(Counts):
    @staticmethod
    def forward(ctx: Any, x: Any, d: Any) -> Any:
        d.append(len(d))
        bump(d[0])
        return x * 2


class CountsLater(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, d: Any) -> Any:
        ctx.d = d
        return x * d["t"]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        bump(ctx.d)
        return g * ctx.d["t"], None


WRITES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "apply": lambda x, d, e: Counts.apply(x, d),
    "apply_nested": lambda x, d, e: CountsFirst.apply(x, e),
    "checkpoint": lambda x, d, e: checkpoint(bumps, x, d, use_reentrant=False),
    "checkpoint_kw": lambda x, d, e: checkpoint(bumps, x, d=d, use_reentrant=False),
    "map": lambda x, d, e: (list(map(bump, [d])), x * 2)[1],
    "map_e": lambda x, d, e: (list(map(bump, e)), x * 2)[1],
    "filter": lambda x, d, e: [bump(k) for k in filter(lambda k: k["n"] >= 0, e)] and x * 2,
    "sorted": lambda x, d, e: [bump(k) for k in sorted(e, key=lambda k: k["n"])] and x * 2,
    "max": lambda x, d, e: bump(max(e, key=lambda k: k["n"])) and x * 2,
    "max2": lambda x, d, e: bump(max(d, e[1], key=lambda k: k["n"])) and x * 2,
    "min": lambda x, d, e: bump(min(e, key=lambda k: -k["n"])) and x * 2,
    "reduce": lambda x, d, e: functools.reduce(lambda a, k: a + bump(k)["n"], e, 0) and x * 2,
    "zip": lambda x, d, e: [bump(a, b["n"]) for a, b in zip(e, e)] and x * 2,
    "enumerate": lambda x, d, e: [bump(a, i) for i, a in enumerate(e)] and x * 2,
    "reversed": lambda x, d, e: [bump(a) for a in reversed(e)] and x * 2,
    "chain": lambda x, d, e: [bump(a) for a in itertools.chain(e, [d])] and x * 2,
    "islice": lambda x, d, e: [bump(a) for a in itertools.islice(e, 1)] and x * 2,
    "starmap": lambda x, d, e: list(itertools.starmap(bump, [(d, 2)])) and x * 2,
    "product": lambda x, d, e: [bump(a) for a, b in itertools.product(e, e)] and x * 2,
    "partial": lambda x, d, e: functools.partial(bump, d)() and x * 2,
    "values": lambda x, d, e: [bump(k) for k in {"a": d}.values()] and x * 2,
    "dictof": lambda x, d, e: bump(dict(a=d)["a"]) and x * 2,
    "listof": lambda x, d, e: bump(list(e)[0]) and x * 2,
    "tupleof": lambda x, d, e: bump(tuple(e)[1]) and x * 2,
    "setdefault": lambda x, d, e: bump(d.setdefault("sub", {"n": 0})) and x * 2,
    "get": lambda x, d, e: bump(collections.ChainMap({"a": d})["a"]) and x * 2,
    "attrgetter": lambda x, d, e: bump(operator.itemgetter(0)(e)) and x * 2,
    "copyshallow": lambda x, d, e: bump(copy.copy(e)[0]) and x * 2,
    "concat": lambda x, d, e: bump((e + [d])[2]) and x * 2,
    "mul": lambda x, d, e: bump(([d] * 2)[1]) and x * 2,
    "pop": lambda x, d, e: bump([*e].pop()) and x * 2,
    "vmap": lambda x, d, e: torch.vmap(lambda r: (bump(d), r * 2)[1])(x),
    "vmap_arg": lambda x, d, e: torch.vmap(lambda r, q: r * q["t"][0], in_dims=(0, None))(x, d),
    "grad_arg": lambda x, d, e: torch.func.grad(lambda r, q: (bump(q), (r * q["t"]).sum())[1])(x, d),
    "tree_map": lambda x, d, e: [bump(k) for k in torch.utils._pytree.tree_map(lambda v: v, e)] and x * 2,
    "tree_leaves": lambda x, d, e: torch.utils._pytree.tree_leaves(d)[0] * x,
    "fnctx": lambda x, d, e: CountsLater.apply(x, d),
    "deque": lambda x, d, e: bump(collections.deque(e)[0]) and x * 2,
    "namedt": lambda x, d, e: bump(collections.namedtuple("P", "a b")(d, e).a) and x * 2,
    "sum": lambda x, d, e: bump(sum([e, [d]], [])[2]) and x * 2,
    "next": lambda x, d, e: bump(next(iter(e))) and x * 2,
    "anyall": lambda x, d, e: any(map(bump, e)) and x * 2,
    "groupby": lambda x, d, e: [bump(g) for k, gs in itertools.groupby(e, key=lambda k: k["n"]) for g in gs] and x * 2,
    "accumulate": lambda x, d, e: list(itertools.accumulate(e, lambda a, b: bump(b))) and x * 2,
}


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.sweep(every=3)
def test_what_it_writes_is_written(name: str, closed: bool, tensors: bool) -> None:
    """With tensors, or numbers that change, C code gets copies of lists and dicts."""
    write, seen = WRITES[name], []
    grad = name == "fnctx"
    for compiled in (False, True):
        d: dict[str, Any] = {"n": 0}
        e: list[dict[str, Any]] = [{"n": 0}, {"n": 3}]
        if tensors or name in ("vmap_arg", "grad_arg", "fnctx", "tree_leaves"):
            d["t"], e[0]["t"] = torch.ones(3) * 3, torch.ones(3) * 2
        run = (lambda x, d=d, e=e: write(x, d, e)) if closed else write
        region, rows = st.compile(run, frontend="trace") if compiled else run, []
        for k in range(5):
            x = torch.full((3,), 1.0 + k, requires_grad=grad)
            try:
                out = region(x) if closed else region(x, d, e)
                if grad:
                    out.backward(torch.ones(3))
            except st.SubclassTraceError:
                return
            rows.append((out.tolist(), d["n"], [row["n"] if isinstance(row, dict) else row for row in e]))
        seen.append(rows)
    assert seen[0] == seen[1]


class Strict:
    """Compared with an equal hash alone, as sets and dicts do."""

    def __init__(self, v: int) -> None:
        self.v = v

    def __hash__(self) -> int:
        return self.v

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Strict) and self.v == other.v
        return CFG["n"] == 2


@pytest.mark.parametrize(
    "make", [lambda: {Strict(1), Strict(2), Strict(1)}, lambda: {Strict(1): 0, Strict(2): 1, Strict(1): 2}]
)
def test_keys_are_compared_where_their_hashes_are_equal(make: Any) -> None:
    region = st.compile(lambda x: x * len(make()), frontend="trace")
    for CFG["n"] in (1, 2, 1):
        assert region(torch.ones(1)).item() == len(make()) == (2 if CFG["n"] == 2 else 3)
