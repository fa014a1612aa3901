"""Programs that have to run as clones as they do otherwise, and what single statements ask.

A program is text with a function `run`. `python clone_programs.py` judges all of them, with this
Python, and prints what it finds as JSON; it needs neither torch nor pytest.
"""

import sys
import warnings
from typing import Any

#: name: the oldest Python that can compile it, and its text
PROGRAMS: dict[str, tuple[tuple[int, int], str]] = {}


def _program(name: str, text: str, since: tuple[int, int] = (3, 10)) -> None:
    PROGRAMS[name] = since, text


_program(
    "exceptions",
    """
def run():
    out = []
    for i in range(6):
        try:
            try:
                if i == 1: raise KeyError(i)
                if i == 2: continue
                if i == 3: [][i]
                if i == 4: raise ValueError from KeyError('cause')
                out.append(i)
            except KeyError as e: out.append(repr(e))
            except (IndexError, ZeroDivisionError) as e: out.append(type(e).__name__)
            else: out.append('else')
            finally: out.append('finally')
        except ValueError as e: out.append(repr(e.__cause__))
    return out
""",
)
_program(
    "an exception goes through",
    """
def deep(n):
    try:
        return deep(n - 1) if n else {}['gone']
    finally:
        SEEN.append(n)
SEEN = []
def run():
    deep(3)
""",
)
_program(
    "classes of the user's are raised and caught",
    """
class Stop(Exception):
    def __init__(self, value=7):
        super().__init__(value)
        self.value = value
KINDS = (KeyError, (Stop, IndexError))
def run():
    out = []
    for kind in (Stop, KeyError, Stop(9)):
        try: raise kind
        except KINDS[1] as e: out.append(e.value)
        except KINDS as e: out.append(repr(e))
    try: raise Stop from KeyError
    except Stop as e: out.append(repr(e.__cause__))
    try: raise 5
    except TypeError as e: out.append(str(e))
    try:
        try: raise KeyError(1)
        except 5: pass
    except TypeError as e: out.append(str(e))
    return out
""",
)
_program(
    "return in finally",
    """
def f():
    for i in range(3):
        try: return i
        finally:
            if i < 2: continue
def g():
    try: 1 / 0
    except ZeroDivisionError: return 'a'
    finally: LOG.append('b')
LOG = []
def run(): return f(), g(), LOG
""",
)
_program(
    "assert",
    """
def run():
    out = []
    for condition in (1, 0):
        try: assert condition, f'{condition} is not'
        except AssertionError as e: out.append(str(e))
        try: assert not condition
        except AssertionError as e: out.append(repr(e))
    return out
""",
)
_program(
    "with",
    """
import contextlib
class C:
    def __init__(self, swallows): self.swallows, self.seen = swallows, []
    def __enter__(self): return self.seen
    def __exit__(self, kind, e, tb): self.seen.append(kind and kind.__name__); return self.swallows
def early(c):
    with c as seen:
        for i in range(3):
            with contextlib.suppress(KeyError):
                if i == 1: return seen, i
                raise KeyError
def run():
    c, d = C(True), C(False)
    with c as seen, d: raise ValueError
    with c: pass
    try:
        with d: raise IndexError(1)
    except IndexError: seen.append('out')
    try:
        with 5: pass
    except (TypeError, AttributeError) as e: seen.append(type(e).__name__)
    return c.seen, d.seen, early(C(False))
""",
)
_program(
    "super",
    """
class A:
    def __init__(self, v): self.v = v
    @classmethod
    def make(cls, v): return cls(v)
    @property
    def p(self): return self.v
    def f(self, *more): return ('A', *more)
class B(A):
    def __init__(self, v): super().__init__(v + 1)
    @classmethod
    def make(cls, v): return super().make(v * 2)
    @property
    def p(self): return super().p * 10
    def f(self, *more):
        bound = super()
        inner = lambda: self.v
        return super(B, self).f(1) + super().f(*more) + bound.f() + (inner(),) + super(B, self).f()
    def g(self):
        f = super().f
        return f(5), __class__.__name__
    def shadowed(self):
        return SHADOWED(self)
def run():
    b = B(1)
    return B.make(3).p, b.f(4), b.g(), [super(B, b).f() for b in [B(1)]]
""",
)
_program(
    "super is the user's",
    """
class Stub:
    f = staticmethod(lambda: 'stub')
def super(*args): return Stub() if not args else args
class C:
    def f(self):
        s = super()
        return s.f(), super().f(), super(C, self)[0].__name__
def run(): return C().f()
""",
)
_program(
    "class bodies",
    """
K = 3
def run():
    base, twice = 2, 4
    class Meta(type):
        @classmethod
        def __prepare__(cls, name, bases, **more): return {'twice': 'prepared', **more}
    class C(metaclass=Meta, given=1):
        k = K + base
        k += 1
        of_names = twice, given
        l = [base for _ in range(2)]
        m = [k for k in range(3)]
        def f(self): return self.k, __class__.__name__
        class D:
            z = base
            q = K
        x: int = 5
        del k
    C.k = 1
    return C().f(), C.l, C.m, C.D.z, C.D.q, C.__qualname__, C.D.__qualname__, C.of_names, C.x
""",
)
_program(
    "variables around",
    """
N = 0
def counter():
    c = 0
    def inc(by=1, *, twice=False):
        nonlocal c
        global N, MADE
        c += by * (2 if twice else 1)
        N += 2
        MADE = c
        return c
    def drop():
        nonlocal c
        del c
    return inc, drop
def run():
    global N, MADE
    inc, drop = counter()
    inc(); inc(3); inc(1, twice=True)
    drop()
    out = [N, MADE]
    try: inc()
    except NameError as e: out.append(type(e).__name__)
    del MADE
    try: MADE
    except NameError as e: out.append(str(e))
    try: nowhere
    except NameError as e: out.append(e.name)
    return out
""",
)
_program(
    "comprehensions",
    """
LIST = [3, 1, 2]
class C:
    n = 2
    def m(self): return [self.n + k for k in LIST], {(self.n, j) for j in LIST}
def run():
    i = 'kept'
    m = {i: [j for j in range(i) if j % 2] for i in range(5)}
    s = {v for k in m for v in m[k]}
    g = (a + b for a in s for b in s)
    f = [lambda: i for i in range(3)]
    z = [w := n * 2 for n in LIST]
    pairs = [(x, y) for x, y in zip('ab', (1, 2))]
    return m, s, sorted(g), pairs, i, [h() for h in f], z, w, C().m()
""",
)
_program(
    "arguments",
    """
def f(a, /, b, *c, d=4, **e): return a, b, c, d, e
def run():
    a, (b, *c), d = 1, [2, 3, 4], 5
    k = {'d': 1, 'z': 2}
    out = [a, b, c, d, f(1, *[2, 3], **k), f(1, b=2), [*c, *'ab'], {**k, 'z': 3}, {*c, *'a'}]
    out += [f(*c, *[9], x=1, **{'y': 2}), f(*(1, 2)), f(1, 2, d=k), (lambda *a: a)(*c)]
    for wrong in (lambda: f(), lambda: f(1, 2, **{'d': 1}, **{'d': 2}), lambda: f(*5)):
        try: wrong()
        except TypeError as e: out.append(type(e).__name__)
    try: a, b = c[:1]
    except ValueError as e: out.append(str(e))
    return out
""",
)
_program(
    "match",
    """
import dataclasses
@dataclasses.dataclass
class P:
    x: int
    y: int
def kind(o):
    match o:
        case P(0, y): return 'axis', y
        case P(x=x) if x > 5: return 'far', x
        case {'a': [1, *rest], **more}: return rest, more
        case {'b': 1 | 2 as n}: return n
        case {}: return 'a dict'
        case [a, b] | (a, b, _): return a, b
        case [first, *_, last]: return first, last
        case str() as s: return s
        case 1 | 2: return 'few'
        case None: return 'none'
        case _: return 'else'
def run():
    dicts = {'a': [1, 2, 3], 'b': 1}, {'b': 2}, {'c': 1}
    others = [1, 2], (1, 2, 3), 'ab', 2, None, 7, [1, 2, 3, 4], []
    return [kind(o) for o in (P(0, 2), P(9, 1), P(1, 1), *dicts, *others)]
""",
)
_program(
    "generators",
    """
def tree(n):
    if n:
        yield from tree(n - 1)
        got = yield n
        if got: yield got * 100
    return n
def returned():
    v = yield from tree(1)
    yield 'v', v
def run():
    g = tree(3)
    out = [next(g), g.send(7), *g, *returned()]
    def closing():
        try: yield 1
        except GeneratorExit: out.append('exit'); raise
        finally: out.append('closed')
    c = closing(); next(c); c.close()
    t = closing(); next(t)
    try: t.throw(KeyError('thrown'))
    except KeyError as e: out.append(repr(e))
    def stops():
        raise StopIteration
        yield
    try: next(stops())
    except RuntimeError as e: out.append(str(e))
    return out, tree.__qualname__, g.__qualname__
""",
)
_program(
    "async",
    """
import asyncio
class Manager:
    async def __aenter__(self): return 'in'
    async def __aexit__(self, kind, e, tb): LOG.append(kind and kind.__name__); return True
LOG = []
async def numbers(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield i
async def main():
    async with Manager() as m: raise KeyError(m)
    async with Manager(): pass
    found = [i async for i in numbers(4) if i % 2]
    async for i in numbers(2): LOG.append(i)
    else: LOG.append('else')
    both = await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))
    return m, found, both, LOG
def run(): return asyncio.run(main())
""",
)
_program(
    "decorators",
    """
import functools
def twice(f):
    @functools.wraps(f)
    def g(*a, **k): return f(*a, **k) * 2
    return g
def times(n): return lambda f: lambda *a: f(*a) * n
def named(cls): cls.seen = cls.__name__; return cls
def run():
    @twice
    @times(3)
    def f(x): return x + 1
    @named
    class C: pass
    return f(1), f.__name__, C.seen
""",
)
_program(
    "recursion",
    """
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
ackermann = lambda m, n: n + 1 if not m else (
    ackermann(m - 1, 1) if not n else ackermann(m - 1, ackermann(m, n - 1)))
def run(): return fib(12), ackermann(2, 3)
""",
)
_program(
    "operators",
    """
class V:
    def __init__(self, v): self.v = v
    def __add__(self, o): return V(self.v + (o.v if isinstance(o, V) else o))
    __radd__ = __add__
    def __iadd__(self, o): self.v += 100; return self
    def __eq__(self, o): return isinstance(o, V) and self.v == o.v
    def __lt__(self, o): return self.v < o.v
    def __hash__(self): return hash(self.v)
    def __getitem__(self, i): return self.v, i
    def __contains__(self, i): return i == self.v
    def __neg__(self): return V(-self.v)
    def __pos__(self): return V(abs(self.v))
    def __invert__(self): return 'inverted'
    def __matmul__(self, o): return 'matmul'
    def __imatmul__(self, o): return o
    def __call__(self, x): return x + self.v
    def __bool__(self): return self.v > 0
    def __len__(self): return 3
def run():
    a, b = V(1), V(2)
    a += 5
    n = 7
    n -= 1; n *= 9; n //= 2; n <<= 3; n >>= 1; n %= 100; n **= 2; n |= 1; n &= 255; n ^= 3; n /= 2
    out = [n, (a + b).v, (1 + b).v, sum([a, b]).v, a == V(101), a != b, b < a, b > a, max(a, b).v]
    out += [b[4], b[1:2], b[::2], 2 in b, 3 not in b, (-b).v, (+-b).v, ~b, a @ b, b(1), bool(-b)]
    out += [not b, len(b), len({V(1), V(1)}), {V(1): 2}[V(1)], (b or 5).v, (-b or 5), (-b and 5).v]
    out += [a is a, a is not b]
    i, j, x = 7, 2, V(3)
    out += [i // j, i % j, j**i, i ^ j, i & j, i | j, i << j, i >> j, i / j, i - j, j * i]
    out += [1 <= j < i >= 3]
    x @= V(4)
    while i is not None: i = None
    while i is None: i = 3
    return out, x.v, i
""",
)
_program(
    "text, slices, del",
    """
class F:
    def __format__(self, spec): return f'<{spec}>'
    def __repr__(self): return 'F()'
    def __str__(self): return 'text'
def run():
    l, d, o, w = list(range(10)), {'a': 1, 'b': 2}, F(), 6
    del l[2:4], d['a']; l[0:2] = 'xy'; l[-1] += 5
    o.k = 1; o.k += 1; out = [o.k]
    del o.k
    try: o.k
    except AttributeError as e: out.append(str(e))
    out += [f'{l!r:>5}{d}{3.14159:.2f}{"a"!s}{w=}', f'{o}|{o!r}|{o!s}|{o!a}|{o:>3}']
    out += [f'{o!r:>{w}}|{o:{w}}']
    i, j = 1, 3
    l[i:j] = 'uvw'
    texts = '%s %d' % ('a', 1), '{0} {x}'.format(1, x=2), 'a,b'.split(',')
    return out, l[i:j], l[::2], l[1:3], l[:], texts
""",
)
_program(
    "sets, dicts",
    """
class K:
    def __init__(self, n): self.n = n
    def __hash__(self): return self.n
    def __eq__(self, o): return self.n == o.n
    def __repr__(self): return f'K{self.n}'
def run():
    a, b = K(1), K(2)
    d = {a: 1, b: 2, K(1): 3, (1, 'x'): 4, 5: 6, 1.0: 7, True: 8}
    s = {a, K(1), b, *[K(3), b]}
    out = [d, sorted(map(repr, s)), {K(i % 2): i for i in range(4)}, {1: 2}, {1, 2}]
    out.append(len({K(i % 2) for i in range(4)}))
    for wrong in (lambda: {[]: 1}, lambda: {[], 1}, lambda: {[] for _ in 'a'}):
        try: wrong()
        except TypeError as e: out.append(str(e)[:16])
    return out
""",
)
_program(
    "imports",
    """
def run():
    import math as m
    import os.path
    from os import path as p, sep
    from collections import abc
    out = [m.floor(2.5), p.join('a', 'b'), sep, os.path.basename('a/b'), abc.Mapping.__name__]
    try: from os import no_such_name
    except ImportError as e: out.append((type(e).__name__, e.name))
    from xml import dom
    from xml.dom import minidom
    return out, minidom.__name__
""",
)
_program(
    "annotations",
    """
def run():
    x: int = 1
    class C:
        a: int
        b: 'str' = 'b'
    def f(a: int, *b: str, c: float = 1.0) -> list: return a
    return C.__annotations__, f.__annotations__, x
""",
)
_program("deleted", "def run():\n    x = 1\n    del x\n    return x\n")
_program(
    "code of a module",
    """
CODE = '''
x = y + 1
del y
def f(z): return x + z
for i in range(3): x += i
'''
def run():
    space = {'y': 5}
    exec(CODE, space)
    return space['x'], space['f'](2)
""",
)
_program(
    "far jumps",
    "def run():\n    out = []\n    for i in range(3):\n        if i == 1:\n"
    + "            out.append(i + 2)\n" * 7000
    + "        elif i == 2:\n            continue\n        else: out.append('x')\n"
    + "        while len(out) < 3:\n"
    + "            out.append('y')\n" * 300
    + "    return len(out), out[-1], out[0]\n",
)
_program(
    "many names and constants",
    "class C: pass\n"
    + "".join(f"g{i} = {i}\n" for i in range(400))
    + "def run():\n    c = C()\n"
    + "".join(f"    c.a{i} = g{i} + {i + 1000}\n    l{i} = c.a{i}\n" for i in range(400))
    + "    def inner(): return "
    + " + ".join(f"l{i}" for i in range(300))
    + "\n    return inner(), sum(vars(c).values())\n",
)
_program(
    "many arguments",
    "def f(*a, **k): return sum(a) + len(k)\n"
    "def run():\n"
    "    n = 1\n"
    f"    a = f({', '.join('n' for _ in range(300))})\n"
    f"    b = f({', '.join(f'k{i}=n' for i in range(270))})\n"
    f"    return a, b, len({{{', '.join(f'n + {i}' for i in range(280))}}})\n",
)
_program(
    "groups of exceptions",
    """
def run():
    out = []
    KINDS = (ValueError, KeyError)
    try: raise ExceptionGroup('g', [ValueError(1), KeyError(2), OSError(3)])
    except* KINDS as g: out.append(repr(g.exceptions))
    except* OSError as g: out.append(repr(g.exceptions))
    return out
""",
    (3, 11),
)
_program(
    "parameters of types",
    """
class Stack[T]:
    kind = int
    items: list[T]
    def push[S: (int, str)](self, item: S) -> T: return item
    class Inner[U]: of = kind if False else int
type Pair[A] = tuple[A, Stack[A]]
def first[T: int](x: T) -> T: return x
def run():
    def local[Q](x: Q = 1) -> Q: return x
    of = Stack[int].__origin__.__name__, Stack.Inner.of
    return first(3), Stack().push('a'), of, str(Pair.__value__), local()
""",
    (3, 12),
)
_program(
    "templates",
    """
def run():
    a, w = 5, 3
    t = t'{a}|{a!r:>{w}}|{a:x}'
    parts = [(i.value, i.conversion, i.format_spec, i.expression) for i in t.interpolations]
    return t.strings, parts
""",
    (3, 14),
)
_program(
    "all, any",
    """
LIST = [1, 2, 3]
def run(): return all(x for x in LIST), any(x > 5 for x in LIST), tuple(x for x in LIST), all(LIST)
""",
)

_LIBRARY = """
import argparse, bisect, collections, configparser, copy, csv, datetime, difflib, fractions
import functools, graphlib, heapq, io, itertools, json, pprint, random, re, shlex, statistics
import string, textwrap, tokenize, types, _pydecimal
def run():
    p = argparse.ArgumentParser(prog='p')
    p.add_argument('--n', type=int, default=3)
    p.add_argument('--f', action='store_true')
    c = configparser.ConfigParser()
    c.read_string('[a]\\nx = 1\\ny = %(x)s2\\n')
    heap = []
    for v in (3, 1, 2): heapq.heappush(heap, v)
    table = csv.DictReader(io.StringIO('a,b\\n1,2\\n'))
    g = graphlib.TopologicalSorter({'d': {'b', 'c'}, 'b': {'a'}, 'c': {'a'}})
    N = collections.namedtuple('N', 'a b')
    @functools.singledispatch
    def kind(o): return 'object'
    @kind.register
    def _(o: int): return 'int'
    lines = io.StringIO('a + 1').readline
    return (
        vars(p.parse_args(['--n', '5'])), p.format_usage(), c['a']['y'], list(table),
        list(g.static_order())[0], json.loads(json.dumps({'a': [1, {'b': None}]}, indent=1)),
        re.sub(r'(a)(b)', lambda m: m[2] + m[1], 'xabab'), textwrap.fill('a b c ' * 9, 20),
        fractions.Fraction(1, 3) + 2, str(_pydecimal.Decimal(1) / 3), statistics.mean([1, 2, 4]),
        string.Template('$a').substitute(a=3), random.Random(0).gauss(0, 1), heap,
        bisect.bisect([1, 2, 3], 2), list(difflib.ndiff(['a'], ['b'])), shlex.split('a "b c"'),
        pprint.pformat({'a': list(range(40))}), datetime.date(2020, 1, 31) + datetime.timedelta(1),
        collections.Counter('abca').most_common(1), N(1, 2)._replace(a=5), kind(1), kind('a'),
        collections.ChainMap({'a': 1}, {'b': 2})['b'], copy.deepcopy({'a': [N(1, [2])]}),
        [k for k, _ in itertools.groupby([1, 1, 2])], types.SimpleNamespace(a=1),
        [t.string for t in tokenize.generate_tokens(lines)],
    )
"""
_program("the standard library", _LIBRARY)

HEAD = """
import types
class C: pass
GLOBAL, KINDS = 1, (KeyError,)
class Custom(Exception):
    def __init__(self): pass
def around():
    free, written = 1, 2
    def reads(): return free
    def writes():
        nonlocal written
        written = 3
    def drops():
        nonlocal written
        del written
    def body():
        class D: k = free
    return reads, writes, drops, body
reads, writes, drops, body = around()
"""
#: a statement of a function f(o), `o`, and what it must ask: operations and what they are told
ASKS: dict[str, tuple[str, tuple[tuple[str, Any], ...]]] = {
    "o.a": ("types.SimpleNamespace(a=1)", (("attr", "a"),)),
    "o.conjugate()": ("1", (("attr", "conjugate"), ("call", None))),
    "o.a = 1": ("C()", (("set_attr", "a"),)),
    "del o.a": ("types.SimpleNamespace(a=1)", (("del_attr", "a"),)),
    "GLOBAL": ("1", (("global", "GLOBAL"),)),
    "global W; W = 1; del W": ("1", (("write_global", "W"), ("write_global", "W"))),
    "reads()": ("1", (("cell", "free"),)),
    "writes()": ("1", (("write_cell", None),)),
    "drops()": ("1", (("write_cell", None),)),
    "body()": ("1", ()),
    "o[0]": ("[1]", (("item", None),)),
    "o[0] = 1": ("[1]", (("set_item", None),)),
    "del o[0]": ("[1]", (("del_item", None),)),
    "o[0] += 1": ("[1]", (("item", None), ("binary", "+="), ("set_item", None))),
    "o is GLOBAL": ("1", (("is", False),)),
    "return o is not GLOBAL": ("1", (("is", True),)),
    "1 in o": ("[1]", (("contains", False),)),
    "return 1 not in o": ("[1]", (("contains", True),)),
    "o < 1": ("1", (("compare", "lt"),)),
    "o != 1": ("1", (("compare", "ne"),)),
    "o - 1": ("1", (("binary", "-"),)),
    "o @= 1": ("type('M', (), {'__imatmul__': lambda s, o: 1})()", (("binary", "@="),)),
    "-o": ("1", (("unary", "neg"),)),
    "+o": ("1", (("unary", "pos"),)),
    "~o": ("1", (("unary", "invert"),)),
    "return not o": ("1", (("truth", None),)),
    "if o: pass": ("1", (("truth", None),)),
    "while o: o = 0": ("1", (("truth", None), ("truth", None))),
    "for _ in o: pass": ("[1]", (("iter", None),)),
    "a, b = o": ("[1, 2]", (("iter", None),)),
    "a, *b = o": ("[1, 2]", (("iter", None),)),
    "[*o]": ("[1]", (("iter", None),)),
    "{*o}": ("[1]", (("iter", None),)),
    "{**o}": ("{}", (("mapping", None),)),
    "dict(*(), **o)": ("{}", (("mapping", None), ("call_ex", None))),
    "print(*o)": ("()", (("call_ex", None),)),
    "o()": ("int", ()),
    "with o: pass": ("__import__('threading').Lock()", (("manager", None),)),
    "f'{o}'": ("1", (("format", None),)),
    "f'{o:>{o}}'": ("1", (("format", None), ("format", None))),
    "f'{o!r}'": ("1", (("call", None),)),
    "f'{o!s:>3}'": ("1", (("call", None),)),
    "{o}": ("(1,)", (("call", None),)),
    "{o: 1}": ("(1,)", (("call", None),)),
    "{i for i in o}": ("[(1,)]", (("call", None),)),
    "{i: 1 for i in o}": ("[(1,)]", (("call", None),)),
    "from math import pi": ("1", (("attr", "pi"),)),
    "raise Custom": ("1", (("global", "Custom"), ("call", None))),
    "raise Custom from None": ("1", (("global", "Custom"), ("call", None))),
    "try: {}['a']\n    except KINDS: pass": ("1", (("global", "KINDS"), ("iter", None))),
    "match o:\n        case [1]: pass": ("[1]", (("get_len", None),)),
    "match o:\n        case {'a': 1}: pass": ("{'a': 1}", (("match_keys", None),)),
    "match o:\n        case {'a': 1, **b}: pass": (
        "{'a': 1}",
        (("match_keys", None), ("mapping", None)),
    ),
    "match o:\n        case int(): pass": ("1", (("match_class", 0),)),
    "match o:\n        case C(a=1): pass": ("C()", (("match_class", 0),)),
}


def judge() -> dict[str, Any]:
    """By name of a program or statement: None, or what went wrong."""
    from plain_operations import Plain, load

    warnings.simplefilter("ignore")  # of the compiler, about what the programs try
    instrumenter = load()
    plain = Plain(instrumenter)
    found: dict[str, Any] = {}
    for name, (since, text) in PROGRAMS.items():
        if sys.version_info[:2] >= since:
            found[name] = _difference(instrumenter, name, text)
    for statement, (argument, asks) in ASKS.items():
        found[statement] = _not_asked(plain, statement, argument, asks)
    found["what the code of a module asks"] = _of_module(plain)
    found["unseen"] = sorted(_unseen())
    return found


def _outcome(run: Any, file: str) -> tuple[Any, ...]:
    """What it returns or raises, with the lines of the program that a traceback shows."""
    try:
        return "gives", repr(run())
    except Exception as error:
        lines, at = [], error.__traceback__
        while at is not None:
            if at.tb_frame.f_code.co_filename == file:
                lines.append((at.tb_frame.f_code.co_name, at.tb_lineno))
            at = at.tb_next
        return "raises", repr(error), lines


def _difference(instrumenter: Any, name: str, text: str) -> Any:
    file = f"<{name}>"
    code = compile(text, file, "exec")
    outcomes = []
    for prepare in (lambda f: f, instrumenter.clone):
        space: dict[str, Any] = {"__name__": "program"}
        exec(code, space)
        outcomes.append(_outcome(prepare(space["run"]), file))
    return None if outcomes[0] == outcomes[1] else outcomes


def _not_asked(plain: Any, statement: str, argument: str, asks: tuple[Any, ...]) -> Any:
    space: dict[str, Any] = {"__name__": "program"}
    exec(compile(f"{HEAD}def f(o):\n    {statement}\n", "<statement>", "exec"), space)
    operand = eval(argument, space)
    plain.asked.clear()
    outcome = _outcome(lambda: plain.instrumenter.clone(space["f"])(operand), "<statement>")
    left = list(plain.asked)
    for ask in asks:
        if ask not in left:
            return f"{ask} of {plain.asked}; {outcome}"
        left.remove(ask)
    if outcome[0] == "raises" and not statement.startswith("raise"):
        return outcome
    return None


def _of_module(plain: Any) -> Any:
    code = compile("x = y\ndel y\nx += 1\n", "<module>", "exec")
    plain.asked.clear()
    exec(plain.instrumenter.instrument(code), {"y": 1})
    writes = ("write_global", "x"), ("write_global", "y"), ("write_global", "x")
    reads = ("name", "y"), ("name", "x")
    asked = [[ask for ask in plain.asked if ask in of] for of in (writes, reads)]
    return None if asked == [list(writes), list(reads)] else plain.asked


def _unseen() -> set[str]:
    """Instructions that are replaced and stand in no program."""
    import dis

    from subclass_trace.state import opcodes

    seen: set[str] = set()

    def look(code: Any) -> None:
        seen.update(instruction.opname for instruction in dis.get_instructions(code))
        for constant in code.co_consts:
            if isinstance(constant, type(code)):
                look(constant)

    for since, text in PROGRAMS.values():
        if sys.version_info[:2] >= since:
            look(compile(text, "<program>", "exec"))
    names = {name for name in opcodes.REPLACED if dis.opmap.get(name, 256) < 256}
    return {name for name in names if not name.startswith("INSTRUMENTED_")} - seen - {"IMPORT_STAR"}


if __name__ == "__main__":
    import json

    print(json.dumps(judge()))
