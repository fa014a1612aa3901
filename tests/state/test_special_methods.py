"""Special methods of classes of the user's, called by C code in all ways: what they read is compared, and what they write
is written, or the region is refused.

Each program is an expression of an object, times what its methods do (`DOES`); `judging.py` judges it over three changes.
"""

from __future__ import annotations

import pytest

from . import judging
from .generate import Program

#: what each special method does before it answers with ``CFG["n"]``
DOES = {
    "reads": 'return CFG["n"]',
    "reads itself": 'return s.v * CFG["n"]',
    "counts": 'CFG["c"] += 1; return CFG["n"]',
    "changes itself": 's.c += 1; return CFG["n"]',
    "logs": 'LOG.append(len(LOG)); return CFG["n"]',
}

SOURCE = """
import array, bisect, collections, copy, decimal, functools, heapq, itertools, json, math, operator, pickle, re, statistics
import string, struct, types, weakref
import numpy as np
import torch
from torch import nn

CFG, LOG = {"n": 1, "c": 0}, []
def change(k): CFG["n"] = (2, 1, 3)[k]
def does(s): $does

class Held:
    def __init__(s, v): s.v, s.c = v, 0

class Obj(Held):
    def __lt__(s, o): return does(s) * s.v < (o.v * CFG["n"] if type(o) is Obj else o)
    def __gt__(s, o): return does(s) * s.v > (o.v if type(o) is Obj else o)
    def __eq__(s, o): return does(s) == 2
    def __hash__(s): return does(s) * 0 + 7
    def __len__(s): return does(s)
    def __iter__(s): return iter([does(s), 1])
    __reversed__ = __iter__
    def __contains__(s, k): return does(s) == 2
    __bool__ = lambda s: does(s) == 2
    def __getitem__(s, k):
        if k == 3: raise IndexError
        return does(s)
    def __float__(s): return float(does(s))
    def __str__(s): return str(does(s))
    __repr__ = __str__
    def __format__(s, f): return str(does(s))
    def __bytes__(s): return b"a" * does(s)
    def __copy__(s): return Obj(does(s))
    def __deepcopy__(s, m): return Obj(does(s))
    def __dir__(s): return ["a"] * does(s)
    def __iadd__(s, o): does(s); s.v += 1; return s
    def __exit__(s, *a): s.c = does(s)
    def __divmod__(s, o): return does(s), 1
    def keys(s): return ["k"] * does(s)
    def __call__(s, *a): return does(s)
    __index__ = __int__ = __floor__ = __trunc__ = __ceil__ = __enter__ = __abs__ = __call__
    __round__ = __add__ = __radd__ = __mul__ = __rmul__ = __pow__ = __rpow__ = __matmul__ = __neg__ = __call__

class Key(Held):
    def __hash__(s): return 5
    def __eq__(s, o): return does(s) == 2

class Iter(Held):
    k = 0
    def __iter__(s): return s
    def __next__(s):
        s.k += 1
        if s.k > 3: raise StopIteration
        return does(s)

class Items(Held):
    def __getitem__(s, k):
        if k >= 3: raise IndexError
        return does(s)

class Index(Held):
    def __index__(s): return does(s)

class Missing(dict):
    def __init__(s, v): s.v, s.c = v, 0
    def __missing__(s, k): return does(s)

class Dict(Missing):
    def __init__(s, v): super().__init__(v); dict.__setitem__(s, "k", 9)
    def __getitem__(s, k): return does(s)
    def __iter__(s): return iter(["k"] * does(s))
    def keys(s): return ["k"] * does(s)
    def get(s, k, d=None): return does(s)

class List(list):
    def __init__(s, v): super().__init__([1, 2]); s.v, s.c = v, 0
    def __getitem__(s, k): return does(s)
    def __iter__(s): return iter([does(s)])
    def __len__(s): return does(s)
    def append(s, w): super().append(w * does(s))

class Text(str):
    def __new__(cls, v): o = str.__new__(cls, "ab"); o.v, o.c = v, 0; return o
    def __hash__(s): does(s); return str.__hash__(s)
    def __eq__(s, o): return does(s) == 2
    def __str__(s): return "a" * does(s)

class Int(int):
    def __new__(cls, v): o = int.__new__(cls, v); o.v, o.c = v, 0; return o
    def __index__(s): return does(s)
    def __hash__(s): return does(s) * 0 + 1
    def __eq__(s, o): return does(s) == 2
    def __lt__(s, o): return does(s) == 2
    __int__ = __mul__ = __rmul__ = __add__ = __index__

class State(Held):
    def __getstate__(s): return {"v": does(s), "c": s.c}

class Descriptor(Held):
    def __get__(s, o, t): return does(s)
    def __set__(s, o, w): s.c = w * does(s)
    def __delete__(s, o): s.c += does(s)

def sliced(o): l = [1, 2]; l[0:1] = o; return l[0] + len(l)
def added(o): l = [1]; l += o; return sum(l)
def starred(o): a, *b = o; return a
def in_place(o): h = types.SimpleNamespace(a=o); h.a += 1; return h.a.v
def managed(o):
    with o as q: return q
def raised(o):
    try: raise ValueError(o)
    except ValueError as e: return len(str(e)) + (e.args[0] is o)
def cached(o):
    f = functools.lru_cache(None)(lambda q: len(q))
    return f(o) + f(o)
def kept(o):
    class C: a, items = o, []
    C.items.append(1)
    return C().a + len(C.items)
def set_and_deleted(o):
    class C: a = o
    c = C(); c.a = 3; del c.a
    return o.c
def matched(o):
    match o:
        case {"k": q}: return q
        case [a, b]: return a
        case [a]: return a + 5
        case Held(v=1, c=q): return q + 3
        case _: return 4
def appended(o): o.append(3); return list.__getitem__(o, 2)
"""

FORMS = {
    "Obj": """
len(o) | bool(o) | not o | (o and 5) == 5 | int(o) | float(o) | complex(o).real | abs(o) | -o | round(o) | divmod(o, 2)[0]
pow(o, 2) | o @ 1 | o + 1 | sum([o, o]) | str(o).__len__() | len(f"{o}") | len("%s" % o) | len("{a!r}".format(a=o)) | hash(o)
max([o, p]).v | min(o, 2) == 2 | sorted([o, p])[0].v | sorted([[o], [p]], reverse=True)[0][0].v | max([(o, 1), (p, 2)])[1]
(lambda l: (l.sort(), l[0].v)[1])([o, p]) | (o, 1) < (p, 2) | [o] == [p] | {1: o} == {1: p} | o in [p] | [o].count(p)
len({o, p}) | len({o: 1, p: 2}) | len(dict([(o, 1), (p, 2)])) | len(set([o, p])) | {o: 4}.get(p, 5) | p in {o: 1}
len(dict.fromkeys([o, p])) | len({**{1: 1}, **{o: 1}, **{p: 2}}) | len(collections.Counter([o, p])) | hash((o, 1)) * 0 + 1
list(o)[0] | tuple(o)[0] | set(o).__len__() | [*o][0] | max(*o) | sorted(o)[0] | any(o) | all(o) | list(reversed(o))[0]
(lambda l: (l.extend(o), l[0])[1])([]) | list(itertools.groupby([o, p])).__len__() | list(itertools.starmap(max, [o]))[0]
list(map(o, [1]))[0] | sorted([1, 2], key=o)[0] | functools.partial(o, 1)() | functools.reduce(operator.add, [o, o])
[1, 2, 3, 4][o] | len("abcd"[o:]) | len(range(o)) | [1, 2, 3, 4].pop(o) | (lambda l: (l.insert(o, 7), l.index(7))[1])([1, 2])
operator.length_hint(o) | operator.index(o) | operator.itemgetter(0)(o) | operator.contains(o, 1) | len(dir(o)) | raised(o)
math.floor(o) | math.sqrt(o) | math.gcd(o, 4) | math.fsum([o, o]) | math.prod([o, 2]) | statistics.mean([float(o)])
struct.unpack("i", struct.pack("i", o))[0] | array.array("i", [o])[0] | bytearray(b"abcd")[o] | "abc".find("c", o)
heapq.heappushpop([o], p).v | (lambda h: (heapq.heapify(h), h[0].v)[1])([o, p]) | bisect.bisect([o], p) | copy.copy(o).v
copy.deepcopy([o])[0].v | string.Template("$a").substitute(a=o).__len__() | json.dumps({"a": o}, default=o).__len__()
(lambda **k: k["k"])(**o) | {**o}["k"] | dict(o)["k"] | re.sub("a", "b", "aaaa", o).__len__() | cached(o) | managed(o)
torch.ones(2, o)[0].sum() | torch.arange(6)[o:].sum() | torch.tensor([o, o])[0] | torch.ones(12).reshape(-1, o).shape[0]
np.ones(4)[o:].sum() | in_place(o) | matched(o) | weakref.ref(o)().v | 1 < o < 3 | int(o is p) | len(bytes(o))
""",
    "Key": """
len({(o, 1), (p, 1)}) | len({frozenset([o]), frozenset([p])}) | {o: 1} == {p: 1} | len({q for q in [o, p]}) | p in {o: 1}.keys()
len({q: 1 for q in [o, p]}) | len({1: 1, **{o: 1}, p: 2}) | (p, 1) in {o: 1}.items() | len(dict(zip([o, p], [1, 2])))
(lambda d: d.pop(p, 5))({o: 4}) | (lambda s: (s.add(p), len(s))[1])({o}) | collections.defaultdict(int, {o: 1})[p]
len(collections.OrderedDict([(o, 1), (p, 1)])) | (lambda d: (d.update({p: 1}), len(d))[1])({o: 2}) | {o} == {p}
len({*[o], *[p]}) | collections.ChainMap({o: 1}, {}).get(p, 7) | weakref.WeakKeyDictionary({o: 1}).get(p, 3)
""",
    "Iter": """
sliced(o) | added(o) | starred(o) | sum(o) | dict.fromkeys(o).__len__() | (lambda s: (s.update(o), len(s))[1])(set())
collections.deque(o)[0] | bytes(o)[0] | set([1]).issubset(o) | 2 in o | list(zip(o, o))[0][0] | torch.ones(*o).numel()
list(itertools.chain([1], o))[1] | json.dumps(list(o)).__len__() | np.fromiter(o, float).sum() | heapq.nlargest(1, o)[0]
""",
    "Items": "sliced(o) | added(o) | starred(o) | list(o)[0] | sum(o) | 2 in o | set([1]).union(o).__len__() | next(iter(o))",
    "Index": """
torch.arange(6)[o] | torch.arange(9).view(3, 3)[0, o - 0 if 0 else 1] * len("a" * o.v) | torch.ones(2, o).sum() | "abcd"[o] == "b"
torch.ones(9).narrow(0, 0, o).sum() | [1, 2, 3, 4][:o][-1] | (lambda l: (l.__delitem__(o), l[0])[1])([1, 2, 3, 4]) | hex(o) == "0x2"
""",
    "Missing": """
o["q"] | "{q}".format_map(o).__len__() | len("%(q)s" % o) | o.get("q", 4) | eval("q", {}, o) | collections.ChainMap(o)["q"]
""",
    "Dict": """
dict(o)["k"] | {**o}["k"] | (lambda d: (d.update(o), d["k"])[1])({}) | collections.OrderedDict(o)["k"] | operator.or_({}, o)["k"] | matched(o)
collections.Counter(o)["k"] | types.SimpleNamespace(**o).k | list(o).__len__() | functools.partial(lambda **k: k["k"], **o)()
""",
    "List": """
o[0] | len(o) | list(o)[0] | sum(o) | [1] + o == [1, 1, 2] | list(reversed(o))[0] | appended(o) | torch.tensor(o)[0] | matched(o)
o.index(2) | o.copy()[0] | copy.copy(o)[0] | o == [1, 2] | sorted(o)[0] | json.dumps(o).__len__() | heapq.heappop(o)
""",
    "Text": """
{"ab": 4}.get(o, 5) | {o: 4}.get("ab", 5) | len({"ab", o}) | getattr(types.SimpleNamespace(ab=7), o) | len("%s" % o) | o == "ab"
""",
    "Int": """
max([o, 2]) | sorted([o, 2])[0] | {1: 4}.get(o, 5) | operator.index(o) | torch.ones(2) * o | 2.5 * o | torch.ones(o).numel()
[1, 2, 3, 4][o] | sum([o]) | o in [1] | 3.0 > o
""",
    "State": "copy.copy(o).v | copy.deepcopy([o])[0].v | pickle.loads(pickle.dumps(o)).v | o.__reduce_ex__(2).__len__()",
    "Descriptor": "kept(o) | set_and_deleted(o)",
}
CASES = [
    (kind, form.strip()) for kind, text in FORMS.items() for form in text.replace("\n", "|").split("|") if form.strip()
]
STEPS = ("call", "change 0", "call", "change 1", "call", "change 2", "call")


@pytest.mark.parametrize("kind, form", [pytest.param(*case, id=f"{case[0]}: {case[1]}") for case in CASES])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.sweep(every=14)
def test_it_is_as_in_eager_mode(kind: str, form: str) -> None:
    bad = []
    for what, does in DOES.items():
        made = f"def fn(x): return (lambda o, p: x * ({form}))({kind}(1), {kind}(2))"
        program = Program(0, {"change": ""}, f"{SOURCE.replace('$does', does)}\n{made}", STEPS)
        judging._compiled.cache_clear()
        verdict = judging.judge(program)
        if verdict.word in (*judging.FAULTS, "invalid"):
            bad.append(f"{what}: {verdict.word}, {verdict.detail}")
    assert not bad
