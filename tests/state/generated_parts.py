"""What generated programs are put together of: values, holders of values, readers, places, changes.

The parts are text with `$` names:

    $v, $w     two values of a kind              $e    an expression that reads the value
    $o         an expression of the object that holds it under the name or key `k`
    $n         an expression of the number that the program multiplies by
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Value:
    """Two values of a kind.

    Attributes:
        number: what of the value the program multiplies by; for `first` other than for `second`.
        inside: a statement that changes the value itself, so that the number is another.
        tags: what some readers need: "text" can be formatted, "plain" is understood by json.
    """

    name: str
    first: str
    second: str
    number: str
    inside: str = ""
    tags: str = ""


VALUES = (
    Value("a float", "2.0", "3.0", "$e", tags="text plain number"),
    Value("an int", "2", "3", "$e", tags="text plain number"),
    Value("a bool", "True", "False", "(2.0 if $e else 3.0)", tags="plain"),
    Value("none or a number", "None", "1.0", "(2.0 if $e is None else 3.0)", tags="plain"),
    Value("the length of a text", "'aa'", "'bbb'", "len($e)", tags="plain"),
    Value("a text", "'aa'", "'bb'", "(2.0 if $e == 'aa' else 3.0)", tags="plain"),
    Value("a key", "'two'", "'three'", "{'two': 2.0, 'three': 3.0}[$e]", tags="plain"),
    Value("bytes", "b'aa'", "b'bbb'", "len($e)"),
    Value("an infinite float", "1.0", "float('inf')", "(2.0 if $e < 9 else 3.0)"),
    Value("a complex number", "2j", "3j", "$e.imag"),
    Value("a fraction", "fractions.Fraction(2)", "fractions.Fraction(3)", "float($e)"),
    Value("a decimal", "decimal.Decimal(2)", "decimal.Decimal(3)", "float($e)"),
    Value("a range", "range(2)", "range(3)", "len($e)"),
    Value("a tuple", "(2.0, 1.0)", "(3.0, 1.0)", "$e[0]"),
    Value("a tuple with a list", "([2.0], 1)", "([3.0], 1)", "$e[0][0]", "$e[0][0] = 3.0"),
    Value("a list", "[2.0, 1.0]", "[3.0, 1.0]", "$e[0]", "$e[0] = 3.0", "plain"),
    Value("the sum of a list", "[2.0, 1.0]", "[3.0, 1.0]", "sum($e)", "$e.append(1.0)", "plain"),
    Value("a loop over a list", "[2.0, 1.0]", "[3.0, 1.0]", "[q for q in $e][-2]", "$e.insert(1, 5.0)"),
    Value("the length of a list", "[1, 1]", "[1, 1, 1]", "len($e)", "$e.append(1)", "plain"),
    Value("the truth of a list", "[]", "[1]", "(2.0 if not $e else 3.0)", "$e.append(1)", "plain"),
    Value("a member of a list", "[1, 2]", "[1]", "(2.0 if 2 in $e else 3.0)", "$e.remove(2)"),
    Value("a slice", "[1.0, 2.0]", "[1.0, 3.0]", "sum($e[:2])", "$e[1] = 3.0", "plain"),
    Value("an unpacked list", "[2.0, 1.0]", "[3.0, 1.0]", "(lambda a, b: a)(*$e)", "$e[0] = 3.0"),
    Value("a dict", "{'a': 2.0}", "{'a': 3.0}", "$e['a']", "$e['a'] = 3.0", "plain"),
    Value("a dict that grows", "{'a': 2.0}", "{'b': 3.0}", "sum($e.values())", "$e['b'] = 1.0"),
    Value("the order of a dict", "{1: 2.0, 2: 3.0}", "{2: 3.0, 1: 2.0}", "next(iter($e.values()))",
          "$e[1] = $e.pop(1)"),  # fmt: skip
    Value("an absent key", "{}", "{'a': 3.0}", "$e.get('a', 2.0)", "$e['a'] = 3.0", "plain"),
    Value("a key that is there", "{}", "{'a': 3.0}", "(3.0 if 'a' in $e else 2.0)", "$e['a'] = 1"),
    Value("a nested dict", "{'a': {'b': [2.0]}}", "{'a': {'b': [3.0]}}", "$e['a']['b'][0]",
          "$e['a']['b'][0] = 3.0", "plain"),  # fmt: skip
    Value("keywords", "{'a': 2.0}", "{'a': 3.0}", "(lambda a, **k: a)(**$e)", "$e['a'] = 3.0"),
    Value("a default dict", "collections.defaultdict(lambda: 2.0)",
          "collections.defaultdict(lambda: 3.0)", "$e['a']"),  # fmt: skip
    Value("an ordered dict", "collections.OrderedDict(a=2.0, b=3.0)",
          "collections.OrderedDict(b=3.0, a=2.0)", "next(iter($e.values()))", "$e.move_to_end('a')"),  # fmt: skip
    Value("a counter", "collections.Counter('aa')", "collections.Counter('aaa')", "$e['a']", "$e['a'] += 1"),
    Value("a deque", "collections.deque([2.0])", "collections.deque([3.0])", "$e[0]", "$e[0] = 3.0"),
    Value("a set", "{1, 2}", "{1, 2, 3}", "len($e)", "$e.add(3)"),
    Value("a member of a set", "{1}", "{2}", "(2.0 if 1 in $e else 3.0)", "$e.discard(1)"),
    Value("an object", "Box(2.0)", "Box(3.0)", "$e.k", "$e.k = 3.0"),
    Value("an object in an object", "Box(Box(2.0))", "Box(Box(3.0))", "$e.k.k", "$e.k.k = 3.0"),
    Value("a list of objects", "[Box(2.0)]", "[Box(3.0)]", "sum(q.k for q in $e)", "$e[0].k = 3.0"),
    Value("an object with slots", "Slots(2.0)", "Slots(3.0)", "$e.k", "$e.k = 3.0"),
    Value("a data class", "Point(2.0)", "Point(3.0)", "$e.k + $e.y", "$e.k = 3.0"),
    Value("an equal data class", "Point(2.0)", "Point(3.0)", "(2.0 if $e == Point(2.0) else 3.0)", "$e.k = 3.0"),
    Value("a pair", "Pair(2.0, 1)", "Pair(3.0, 1)", "$e.k"),
    Value("a member of an enumeration", "Color.A", "Color.B", "$e.value"),
    Value("which member", "Color.A", "Color.B", "(2.0 if $e is Color.A else 3.0)"),
    Value("which object", "THIS", "THAT", "(2.0 if $e is THIS else 3.0)"),
    Value("a key object", "THIS", "THAT", "{THIS: 2.0, THAT: 3.0}[$e]"),
    Value("a namespace", "types.SimpleNamespace(k=2.0)", "types.SimpleNamespace(k=3.0)", "$e.k", "$e.k = 3.0"),
    Value("a function", "two", "three", "$e()"),
    Value("a function made", "made(2.0)", "made(3.0)", "$e()"),
    Value("a function with a default", "with_default(2.0)", "with_default(3.0)", "$e()",
          "$e.__defaults__ = (3.0,)"),  # fmt: skip
    Value("a generator function", "counts(2.0)", "counts(3.0)", "next($e())"),
    Value("a method", "Box(2.0).get", "Box(3.0).get", "$e()", "$e.__self__.k = 3.0"),
    Value("an object that is called", "Called(2.0)", "Called(3.0)", "$e()", "$e.k = 3.0"),
    Value("a partial", "functools.partial(float, 2)", "functools.partial(float, 3)", "$e()"),
    Value("a class", "Two", "Three", "$e.k"),
    Value("an instance of a class", "Two", "Three", "$e().k"),
    Value("which class", "Two()", "Three()", "(2.0 if isinstance($e, Two) else 3.0)", "$e.__class__ = Three"),
    Value("an object with operators", "Number(2.0)", "Number(3.0)", "float($e + 0.0)", "$e.k = 3.0"),
    Value("a number that is an object", "Number(2.0)", "Number(3.0)", "float($e)", "$e.k = 3.0"),
    Value("the length of an object", "Number(2.0)", "Number(3.0)", "len($e)", "$e.k = 3.0"),
    Value("a loop over an object", "Number(2.0)", "Number(3.0)", "sum($e)", "$e.k = 3.0"),
    Value("an exception", "ValueError(2.0)", "ValueError(3.0)", "$e.args[0]", "$e.args = (3.0,)"),
    Value("a weak reference", "weakref.ref(TWO)", "weakref.ref(THREE)", "$e().k", "$e().k = 3.0"),
    Value("a pattern", "re.compile('aa')", "re.compile('aaa')", "len($e.pattern)"),
    Value("a path", "pathlib.PurePosixPath('aa')", "pathlib.PurePosixPath('aaa')", "len($e.name)"),
    Value("an array", "array.array('d', [2.0])", "array.array('d', [3.0])", "$e[0]", "$e[0] = 3.0"),
    Value("a numpy number", "np.float64(2.0)", "np.float64(3.0)", "float($e)"),
    Value("a numpy array", "np.array([2.0])", "np.array([3.0])", "float($e[0])", "$e[0] = 3.0"),
    Value("a tensor", "torch.tensor(2.0)", "torch.tensor(3.0)", "$e", "$e.add_(1.0)"),
    Value("a list of tensors", "[torch.tensor(2.0)]", "[torch.tensor(3.0)]", "$e[0]",
          "$e[0] = torch.tensor(3.0)"),  # fmt: skip
    Value("a dtype", "torch.float32", "torch.float64", "(2.0 if $e is torch.float32 else 3.0)"),
    Value("the shape of a tensor", "torch.ones(2)", "torch.ones(3)", "$e.shape[0]"),
    Value("a parameter", "nn.Parameter(torch.tensor(2.0))", "nn.Parameter(torch.tensor(3.0))", "$e",
          "$e.data.fill_(3.0)"),  # fmt: skip
    Value("a layer", "nn.Dropout(0.2)", "nn.Dropout(0.3)", "$e.p", "$e.p = 0.3"),
    Value("a layer in training", "nn.Dropout(0.0)", "nn.Dropout(0.0).eval()", "(2.0 if $e.training else 3.0)",
          "$e.eval()"),  # fmt: skip
    Value("a layer that is called", "Scale(2.0)", "Scale(3.0)", "$e(torch.ones(()))", "$e.k = 3.0"),
)

#: names that programs use
HEAD = '''
import abc, array, builtins, collections, contextlib, contextvars, copy, dataclasses, decimal, enum, fractions
import functools, inspect, itertools, json, operator, os, pathlib, pickle, re, string, sys, threading, types, weakref
import numpy as np
import torch
import torch.utils.checkpoint
from torch import nn
import generated_house as house

class Box:
    def __init__(self, k): self.k = k
    def get(self): return self.k
class Slots:
    __slots__ = ("k",)
    def __init__(self, k): self.k = k
@dataclasses.dataclass
class Point:
    k: object
    y: float = 1.0
class Pair(collections.namedtuple("Pair", "k y")): pass
class Color(enum.Enum):
    A = 2.0
    B = 3.0
class Two: k = 2.0
class Three: k = 3.0
class Number:
    def __init__(self, k): self.k = k
    def __add__(self, o): return self.k + o
    def __float__(self): return self.k
    def __len__(self): return int(self.k)
    def __iter__(self): yield self.k; yield 1.0
class Called:
    def __init__(self, k): self.k = k
    def __call__(self): return self.k
class Scale(nn.Module):
    def __init__(self, k): super().__init__(); self.k = k
    def forward(self, x): return x * self.k
THIS, THAT, TWO, THREE, NAME = object(), object(), Two(), Three(), "".join(["k"])
def two(): return 2.0
def three(): return 3.0
def made(v): return lambda: v
def with_default(v):
    def f(k=v): return k
    return f
def counts(v):
    def f(): yield v
    return f
'''

#: a module of an installed library: it reads by computed names
HOUSE = '''
def pick(o, n): return getattr(o, n)
def item(o, n): return o[n]
def has(o, n): return hasattr(o, n)
def first(o): return next(iter(o))
def of_all(o, n): return {k: v for k, v in vars(o).items()}[n]
def call(f, *a): return f(*a)
class Base:
    def __getattr__(self, n):
        if n.startswith("__"): raise AttributeError(n)
        return self.__dict__["table"][n]
'''


@dataclass(frozen=True)
class Holder:
    """Where a value is held.

    Attributes:
        setup: statements, with $v.
        write: statements that put $w there; by default an assignment to what `read` says.
        read: an expression.
        root: an expression of the object that holds it, as an attribute "k" or under the key "k".
        form: "attribute", "item", or "" for others.
        tags: "dict" (the object has a dict with it), "class" (its class has it).
    """

    name: str
    setup: str
    write: str = ""
    read: str = ""
    root: str = ""
    form: str = ""
    tags: str = ""
    restore: str = ""


def _attribute(name: str, setup: str, tags: str = "", write: str = "O.k = $w", root: str = "O", restore: str = "") -> Holder:
    return Holder(name, setup, write, f"{root}.k", root, "attribute", tags, restore)


def _item(name: str, setup: str, tags: str = "", write: str = "O['k'] = $w", root: str = "O") -> Holder:
    return Holder(name, setup, write, f"{root}['k']", root, "item", tags)


HOLDERS = (
    # variables and functions
    Holder("a global", "HELD = $v", "global HELD; HELD = $w", "HELD"),
    Holder("a cell", "def around():\n    held = $v\n    def get(): return held\n    def put(v):\n        nonlocal held\n"
           "        held = v\n    return get, put\nget, put_in = around()", "put_in($w)", "get()"),
    Holder("two cells deep", "def around():\n    held = $v\n    def get(): return (lambda: held)()\n    def put(v):\n"
           "        nonlocal held\n        held = v\n    return get, put\nget, put_in = around()", "put_in($w)", "get()"),
    Holder("a default", "def get(k=$v): return k", "get.__defaults__ = ($w,)", "get()"),
    Holder("a keyword default", "def get(*, k=$v): return k", "get.__kwdefaults__ = {'k': $w}", "get()"),
    Holder("a keyword default changed", "def get(*, k=$v): return k", "get.__kwdefaults__['k'] = $w", "get()"),
    Holder("a default read by its name", "def get(k=$v): return k", "get.__defaults__ = ($w,)", "get.__defaults__[0]"),
    Holder("a partial", "get = functools.partial(lambda a: a, $v)", "get.__setstate__((get.func, ($w,), {}, {}))", "get()"),
    Holder("a keyword of a partial", "get = functools.partial(lambda a: a, a=$v)", "get.keywords['a'] = $w", "get()"),
    Holder("a bound method", "get = Box($v).get", "get.__self__.k = $w", "get()"),
    Holder("a function replaced", "def get(): return $v", "global get\ndef get(): return $w", "get()"),
    Holder("code replaced", "def get(): return $v\ndef other(): return $w", "get.__code__ = other.__code__", "get()"),
    Holder("a cache", "HELD = [$v]\n@functools.lru_cache(None)\ndef get(): return HELD[0]", "HELD[0] = $w; get.cache_clear()", "get()"),
    Holder("a wrapped function", "HELD = [$v]\ndef wraps(f):\n    @functools.wraps(f)\n    def g(*a): return f(*a)\n    return g\n"
           "@wraps\ndef get(): return HELD[0]", "HELD[0] = $w", "get()"),
    Holder("a generator", "HELD = [$v]\ndef values():\n    yield HELD[0]\n    yield 1", "HELD[0] = $w", "next(values())"),
    Holder("a context manager", "HELD = [$v]\n@contextlib.contextmanager\ndef held():\n    yield HELD[0]\n"
           "def get():\n    with held() as v: return v", "HELD[0] = $w", "get()"),
    Holder("a context variable", "HELD = contextvars.ContextVar('held')\nHELD.set($v)", "HELD.set($w)", "HELD.get()"),
    Holder("the default of a context variable", "HELD = contextvars.ContextVar('held', default=[$v])", "HELD.get()[0] = $w", "HELD.get()[0]"),
    Holder("a builtin", "builtins.zz_held = $v", "builtins.zz_held = $w", "zz_held", restore="vars(builtins).pop('zz_held', None)"),
    Holder("an imported module", "sys.modules['zz_conf'] = types.ModuleType('zz_conf'); sys.modules['zz_conf'].k = $v\n"
           "def get():\n    from zz_conf import k\n    return k", "sys.modules['zz_conf'].k = $w", "get()"),
    Holder("a missing key", "class D(dict):\n    def __missing__(self, k): return HELD[0]\nHELD, O = [$v], D()", "HELD[0] = $w", "O['q']"),
    Holder("a single dispatch", "@functools.singledispatch\ndef get(o): return $v", "get.register(int, lambda o: $w)", "get(1)"),
    Holder("a class that is indexed", "class C:\n    held = [$v]\n    def __class_getitem__(cls, k): return cls.held[k]", "C.held[0] = $w", "C[0]"),
    Holder("an iterator class", "class C:\n    held = $v\n    def __iter__(self): return iter([self.held])\nO = C()", "C.held = $w", "next(iter(O))"),
    Holder("a weak reference's object", "KEPT = Box($v)\nHELD = weakref.ref(KEPT)", "KEPT.k = $w", "HELD().k"),
    Holder("a weak dict", "KEPT = Box($v)\nO = weakref.WeakValueDictionary(a=KEPT)", "KEPT.k = $w", "O['a'].k"),
    Holder("a proxy of a dict", "HELD = {'k': $v}\nO = types.MappingProxyType(HELD)", "HELD['k'] = $w", "O['k']"),
    Holder("a chain of maps", "HELD = {}\nO = collections.ChainMap(HELD, {'k': $v})", "HELD['k'] = $w", "O['k']"),
    Holder("the group of an optimizer", "OPT = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)\nOPT.param_groups[0]['k'] = $v",
           "OPT.param_groups[0]['k'] = $w", "OPT.param_groups[0]['k']", "OPT.param_groups[0]", "item"),
    Holder("attributes of a stream of values", "HELD = [Box($v), Box($v)]", "HELD[0].k = $w", "[q.k for q in HELD][0]"),
    # attributes
    _attribute("an attribute", "O = Box($v)", "dict"),
    _attribute("an attribute two deep", "O = Box(Box($v))", write="O.k.k = $w", root="O.k"),
    _attribute("an object in a list", "L = [Box($v)]", write="L[0].k = $w", root="L[0]"),
    _attribute("an object in a tuple", "L = (1, Box($v))", write="L[1].k = $w", root="L[1]"),
    _attribute("an object under a key", "L = {'a': Box($v)}", write="L['a'].k = $w", root="L['a']"),
    _attribute("a namespace", "O = types.SimpleNamespace(k=$v)", "dict"),
    _attribute("a slot", "O = Slots($v)"),
    _attribute("a field of a data class", "O = Point($v)", "dict"),
    _attribute("a field of a frozen data class", "@dataclasses.dataclass(frozen=True)\nclass F:\n    k: object\nO = F($v)", "dict",
               "object.__setattr__(O, 'k', $w)"),
    _attribute("a named tuple", "O = Pair($v, 1)", write="global O; O = Pair($w, 1)"),
    _attribute("a class attribute", "class C: k = $v\nO = C()", "class", "C.k = $w"),
    _attribute("an attribute of a class", "class C: k = $v", "class", "C.k = $w", "C"),
    _attribute("a class attribute shadowed", "class C: k = $v\nO = C()", "class"),
    _attribute("an attribute of a base", "class A: k = $v\nclass B(A): pass\nclass C(B): pass\nO = C()", "class", "A.k = $w"),
    _attribute("an attribute that a class between gets", "class A: k = $v\nclass B(A): pass\nclass C(B): pass\nO = C()", "class", "B.k = $w"),
    _attribute("a base replaced", "class A: k = $v\nclass B: k = $w\nclass C(A): pass\nO = C()", "class", "C.__bases__ = (B,)"),
    _attribute("the class of an object replaced", "class A: k = $v\nclass B: k = $w\nO = A()", "class", "O.__class__ = B"),
    _attribute("the dict of an object replaced", "O = Box($v)", "dict", "O.__dict__ = {'k': $w}"),
    _attribute("an attribute of a metaclass", "class M(type): k = $v\nclass C(metaclass=M): pass", "", "M.k = $w", "C"),
    _attribute("a property", "class C:\n    k = property(lambda s: s.held)\nO = C(); O.held = $v", "", "O.held = $w"),
    _attribute("a property replaced", "class C:\n    k = property(lambda s: $v)\nO = C()", "", "C.k = property(lambda s: $w)"),
    _attribute("a property of a metaclass", "class M(type):\n    k = property(lambda s: s.held)\nclass C(metaclass=M): held = $v", "",
               "C.held = $w", "C"),
    _attribute("a cached property", "class C:\n    @functools.cached_property\n    def k(self): return self.held\nO = C(); O.held = $v; O.k", "",
               "O.k = $w"),
    _attribute("a data descriptor", "class D:\n    def __get__(s, o, t): return s.held\n    def __set__(s, o, v): s.held = v\nd = D(); d.held = $v\n"
               "class C: k = d\nO = C()", "", "d.held = $w"),
    _attribute("a descriptor without data", "class D:\n    def __get__(s, o, t): return HELD[0]\nHELD = [$v]\nclass C: k = D()\nO = C()", "",
               "HELD[0] = $w"),
    _attribute("a descriptor shadowed", "class D:\n    def __get__(s, o, t): return $v\nclass C: k = D()\nO = C()", "", "vars(O)['k'] = $w"),
    _attribute("a getattr", "class C:\n    def __getattr__(s, n): return s.__dict__['t'][n]\nO = C(); O.__dict__['t'] = {'k': $v}", "", "O.t['k'] = $w"),
    _attribute("a getattribute", "class C:\n    def __getattribute__(s, n): return HELD[n]\nHELD, O = {'k': $v}, C()", "", "HELD['k'] = $w"),
    _attribute("a getattr of a library", "class C(house.Base): pass\nO = C(); O.__dict__['table'] = {'k': $v}", "", "O.table['k'] = $w"),
    _attribute("an attribute of a module", "O = sys.modules['zz_held'] = types.ModuleType('zz_held'); O.k = $v", "dict"),
    _attribute("a getattr of a module", "O = types.ModuleType('zz_held'); HELD = [$v]\ndef of_module(n): return HELD[0]\nO.__getattr__ = of_module",
               "", "HELD[0] = $w"),
    _attribute("an attribute of a function", "def O(): pass\nO.k = $v", "dict"),
    _attribute("an attribute of a partial", "O = functools.partial(two); O.k = $v", "dict"),
    _attribute("an attribute of a layer", "O = nn.Identity(); O.k = $v", "dict layer"),
    _attribute("an attribute of a layer of the user's", "class L(nn.Module):\n    def __init__(s): super().__init__(); s.k = $v\nO = L()", "layer"),
    _attribute("an attribute of a class of layers", "class L(nn.Module): k = $v\nO = L()", "class", "L.k = $w"),
    _attribute("an attribute of a layer in layers", "N = nn.Sequential(nn.Identity(), nn.Identity()); N[1].k = $v", "layer", "N[1].k = $w", "N[1]"),
    _attribute("an attribute of a tensor", "O = torch.ones(1); O.k = $v", ""),
    _attribute("an attribute of a parameter", "O = nn.Parameter(torch.ones(1)); O.k = $v", ""),
    _attribute("an attribute of this thread", "O = threading.local(); O.k = $v", ""),
    _attribute("an attribute of an exception", "O = KeyError(1); O.k = $v", "dict"),
    _attribute("an attribute of a member of an enumeration", "O = Color.A; O.k = $v", "dict"),
    _attribute("an attribute of a subclass of list", "class L(list): pass\nO = L([1]); O.k = $v", "dict"),
    _attribute("an attribute of a subclass of dict", "class L(dict): pass\nO = L(a=1); O.k = $v", "dict"),
    _attribute("an attribute of a subclass of tuple", "class L(tuple): pass\nO = L([1]); O.k = $v", "dict"),
    _attribute("an attribute of a subclass of float", "class L(float): pass\nO = L(2.0); O.k = $v", "dict"),
    _attribute("an attribute of an abstract class", "class A(abc.ABC):\n    k = $v\nclass C(A): pass\nO = C()", "class", "A.k = $w"),
    _attribute("an attribute of a class of torch", "nn.Identity.k = $v\nO = nn.Identity()", "class", "nn.Identity.k = $w",
               restore="vars(nn.Identity).get('k') is None or delattr(nn.Identity, 'k')"),
    # items
    _item("a dict", "O = {'k': $v}", "items"),
    _item("a dict in a dict", "D = {'d': {'k': $v}}", "items", "D['d']['k'] = $w", "D['d']"),
    _item("a dict of an object", "B = Box({'k': $v})", "items", "B.k['k'] = $w", "B.k"),
    _item("an ordered dict", "O = collections.OrderedDict(k=$v)", "items"),
    _item("a default dict", "O = collections.defaultdict(int, k=$v)", "items"),
    _item("a dict of the user's", "class D(dict): pass\nO = D(k=$v)", "items"),
    _item("a dict with a getitem", "class D(dict):\n    def __getitem__(s, k): return HELD[k]\nHELD, O = {'k': $v}, D()", "", "HELD['k'] = $w"),
    _item("a user dict", "O = collections.UserDict(k=$v)"),
    _item("an object with items", "class C:\n    def __getitem__(s, k): return s.t[k]\nO = C(); O.t = {'k': $v}", "", "O.t['k'] = $w"),
    _item("globals", "k = $v", "", "globals()['k'] = $w", "globals()"),
    _item("the dict of an object", "B = Box($v)", "items", "B.k = $w", "vars(B)"),
    _item("the dict of a class", "class C: k = $v", "", "C.k = $w", "C.__dict__"),
    _item("the dict of a layer", "B = nn.Identity(); B.k = $v", "", "B.k = $w", "B.__dict__"),
)  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """A way to read. `text` is an expression; `setup` may define what it uses.

    Attributes:
        needs: tags of the value and the holder, or its form.
        has_default: it gives $w where the attribute or item is not there.
    """

    name: str
    text: str
    setup: str = ""
    needs: str = ""
    has_default: bool = False


READERS = (
    Reader("as it is written", "$e"),
    Reader("a helper", "helper()", "def helper(): return $e"),
    Reader("a helper of a helper", "helper(3)", "def helper(n): return helper(n - 1) if n else $e"),
    Reader("a lambda", "(lambda: $e)()"),
    Reader("a comprehension", "[$e for _ in (0,)][0]"),
    Reader("a generator expression", "next($e for _ in (0,))"),
    Reader("a generator function", "next(helper())", "def helper():\n    yield $e"),
    Reader("yield from", "list(helper())[0]", "def inner():\n    yield $e\ndef helper():\n    yield from inner()"),
    Reader("try and finally", "helper()", "def helper():\n    try: return $e\n    finally: len('a')"),
    Reader("raised and caught", "helper()", "class Found(Exception): pass\ndef helper():\n    try: raise Found($e)\n    except Found as f: return f.args[0]"),
    Reader("a with", "helper()", "class M:\n    def __enter__(s): return $e\n    def __exit__(s, *a): pass\ndef helper():\n    with M() as v: return v"),
    Reader("a loop", "helper()", "def helper():\n    for v in [$e]: pass\n    return v"),
    Reader("a local class", "helper()", "def helper():\n    class C: v = $e\n    return C.v"),
    Reader("a method", "Reads().read()", "class Reads:\n    def read(self): return $e"),
    Reader("a property", "Reads().read", "class Reads:\n    @property\n    def read(self): return $e"),
    Reader("super", "Reads().read()", "class Base:\n    def read(self): return $e\nclass Reads(Base):\n    def read(self): return super().read()"),
    Reader("a class method", "Reads.read()", "class Reads:\n    @classmethod\n    def read(cls): return $e"),
    Reader("an operator", "(Reads() + 1)", "class Reads:\n    def __add__(self, o): return $e"),
    Reader("a comparison", "(Reads() < 1)", "class Reads:\n    def __lt__(self, o): return $e"),
    Reader("a getitem", "Reads()[0]", "class Reads:\n    def __getitem__(self, i): return $e"),
    Reader("a decorator", "helper()", "def through(f): return lambda *a: f(*a)\n@through\ndef helper(): return $e"),
    Reader("a nested function", "helper()", "def helper():\n    def inner(): return $e\n    return inner()"),
    Reader("unpacked arguments", "(lambda *a, **k: k['v'])(*(1,), **{'v': $e})"),
    Reader("a chained condition", "(None or ($e if True else 0))"),
    Reader("a walrus", "(seen := $e, seen)[1]"),
    Reader("a match", "helper()", "def helper():\n    match ($e, 1):\n        case (v, 1): return v"),
    Reader("eval", "eval('$e')"),
    Reader("map", "list(map(lambda _: $e, [0]))[0]"),
    Reader("map and a function", "list(map(helper, [0]))[0]", "def helper(_): return $e"),
    Reader("filter", "[None if not list(filter(lambda _: [$e], [0])) else $e][0]"),
    Reader("sorted", "sorted([1, 0], key=lambda q: q if [$e] else -q) and $e"),
    Reader("reduce", "functools.reduce(lambda a, b: $e, [0, 0])"),
    Reader("a partial", "functools.partial(lambda a, b: b, 1)($e)"),
    Reader("a partial that reads", "functools.partial(lambda a: $e, 1)()"),
    Reader("zip", "next(zip([$e], [1]))[0]"),
    Reader("chain", "list(itertools.chain([$e], [1]))[0]"),
    Reader("a dict display", "{**{'a': $e}}['a']"),
    Reader("dict()", "dict(a=$e)['a']"),
    Reader("a namespace", "types.SimpleNamespace(a=$e).a"),
    Reader("itemgetter", "operator.itemgetter(0)([$e])"),
    Reader("a null context", "helper()", "def helper():\n    with contextlib.nullcontext($e) as v: return v"),
    Reader("an exit stack", "helper()", "def helper():\n    with contextlib.ExitStack() as s: return s.enter_context(contextlib.nullcontext($e))"),
    Reader("a library's call", "house.call(lambda: $e)"),
    Reader("copied", "copy.copy([$e])[0]"),
    Reader("json", "json.loads(json.dumps([$e]))[0]", needs="plain"),
    Reader("format", "float(f'{$e}')", needs="text"),
    Reader("a format method", "float('{}'.format($e))", needs="text"),
    Reader("percent", "float('%s' % $e)", needs="text"),
    Reader("str", "float(str($e))", needs="text"),
    Reader("repr", "float(repr($e))", needs="text"),
    Reader("sum", "sum([$e])", needs="number"),
    Reader("max", "max($e, 1)", needs="number"),
    Reader("round", "round($e)", needs="number"),
    Reader("a power", "pow($e, 1)", needs="number"),
    # attributes
    Reader("getattr", "getattr($o, NAME)", needs="attribute"),
    Reader("getattr with a default", "getattr($o, NAME, $w)", needs="attribute", has_default=True),
    Reader("hasattr", "($o.k if hasattr($o, 'k') else $w)", needs="attribute", has_default=True),
    Reader("an attribute error", "helper()", "def helper():\n    try: return $o.k\n    except AttributeError: return $w", "attribute", True),
    Reader("attrgetter", "operator.attrgetter('k')($o)", needs="attribute"),
    Reader("a kept attrgetter", "GETS($o)", "GETS = operator.attrgetter('k')", "attribute"),
    Reader("map and attrgetter", "list(map(operator.attrgetter('k'), [$o]))[0]", needs="attribute"),
    Reader("sorted by attrgetter", "sorted([$o], key=operator.attrgetter('k'))[0].k", needs="attribute"),
    Reader("a library's getattr", "house.pick($o, NAME)", needs="attribute"),
    Reader("a library's hasattr", "($o.k if house.has($o, NAME) else $w)", needs="attribute", has_default=True),
    Reader("object.__getattribute__", "object.__getattribute__($o, NAME)", needs="attribute dict"),
    Reader("vars", "vars($o)['k']", needs="attribute dict"),
    Reader("vars with a default", "vars($o).get('k', $w)", needs="attribute dict", has_default=True),
    Reader("in vars", "($o.k if 'k' in vars($o) else $w)", needs="attribute dict", has_default=True),
    Reader("__dict__", "$o.__dict__['k']", needs="attribute dict"),
    Reader("a copy of __dict__", "dict($o.__dict__)['k']", needs="attribute dict"),
    Reader("all of __dict__", "[v for n, v in vars($o).items() if n == 'k'][0]", needs="attribute dict"),
    Reader("a library reads all", "house.of_all($o, NAME)", needs="attribute dict"),
    Reader("getattr_static", "inspect.getattr_static($o, 'k')", needs="attribute dict"),
    Reader("dir", "[getattr($o, n) for n in dir($o) if n == 'k'][0]", needs="attribute"),
    Reader("a copied object", "copy.copy($o).k", needs="attribute dict"),
    Reader("a pattern", "helper()", "def helper():\n    match $o:\n        case object(k=v): return v", "attribute"),
    Reader("a formatted attribute", "float('{0.k}'.format($o))", needs="attribute text"),
    Reader("a formatter", "float(string.Formatter().vformat('{0.k}', ($o,), {}))", needs="attribute text"),
    Reader("a method of the class", "type($o).k", needs="attribute class"),
    # items
    Reader("get", "$o.get('k')", needs="item"),
    Reader("get with a default", "$o.get('k', $w)", needs="item", has_default=True),
    Reader("in", "($o['k'] if 'k' in $o else $w)", needs="item", has_default=True),
    Reader("a key error", "helper()", "def helper():\n    try: return $o['k']\n    except KeyError: return $w", "item", True),
    Reader("itemgetter of a key", "operator.itemgetter('k')($o)", needs="item"),
    Reader("getitem", "operator.getitem($o, 'k')", needs="item"),
    Reader("a library's item", "house.item($o, NAME)", needs="item"),
    Reader("a dict made of it", "dict($o)['k']", needs="item items"),
    Reader("a display of it", "{**$o}['k']", needs="item items"),
    Reader("its first value", "next(iter($o.values()))", needs="item items"),
    Reader("its items", "[v for n, v in $o.items() if n == 'k'][0]", needs="item items"),
    Reader("its last item", "list($o.items())[-1][1]", needs="item items"),
    Reader("its keys", "[$o[n] for n in $o][0]", needs="item items"),
    Reader("as keywords", "(lambda k, **more: k)(**$o)", needs="item items"),
    Reader("a pattern of a dict", "helper()", "def helper():\n    match $o:\n        case {'k': v}: return v", "item items"),
    Reader("merged", "($o | {})['k']", needs="item items"),
    Reader("setdefault", "$o.setdefault('k', 5)", needs="item items"),
    Reader("a copy", "$o.copy()['k']", needs="item items"),
    Reader("formatted by a key", "float('{k}'.format_map($o))", needs="item items text"),
    Reader("json of it", "json.loads(json.dumps($o))['k']", needs="item items plain"),
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where in a region the number is read.

    Attributes:
        text: defines `fn`.
        grad: the inputs require grad, and there is a backward.
        weight: how often it is drawn.
    """

    name: str
    text: str
    grad: bool = False
    weight: int = 2


_DISPATCH = """
class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, a): return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)
    def __init__(self, a): self.a = a
    def __tensor_flatten__(self): return ['a'], None
    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride): return Wrapped(inner['a'])
    @classmethod
    def __torch_dispatch__(cls, func, kinds, args=(), kwargs=None):
        dense = [q.a if isinstance(q, Wrapped) else q for q in args]
        return Wrapped(func(*dense, **(kwargs or {})) * $n)
def inputs(x): return Wrapped(x)
def fn(x): return x.sin()
"""
_FUNCTION = """
class Named(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, kinds, args=(), kwargs=None):
        out = super().__torch_function__(func, kinds, args, kwargs or {})
        return out * $n if func is torch.sin else out
def inputs(x): return x.as_subclass(Named)
def fn(x): return torch.sin(x).as_subclass(torch.Tensor)
"""
_CUSTOM = """
class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * $forward
    @staticmethod
    def backward(ctx, g): return g * $backward
def fn(x): return Custom.apply(x).sin()
"""
PLACES = (
    Place("forward", "def fn(x): return x * $n", weight=12),
    Place("a branch", "def fn(x):\n    if $n > 2.5: return x * 3\n    return x + 1", weight=6),
    Place("a loop", "def fn(x):\n    for _ in range(int($n)): x = x + 1\n    return x", weight=3),
    Place("an assertion", "def fn(x):\n    n = $n\n    assert n is not None, n\n    return x * n", weight=1),
    Place("with a backward", "def fn(x): return (x * x * $n).sin()", grad=True, weight=4),
    Place("the forward of a module", "class Net(nn.Module):\n    def forward(self, x): return x * $n\nfn = Net()", weight=4),
    Place("a module in a module", "class In(nn.Module):\n    def forward(self, x): return x * $n\n"
          "fn = nn.Sequential(nn.Tanh(), In())"),
    Place("a forward hook", "fn = nn.Identity()\nfn.register_forward_hook(lambda m, i, o: o * $n)"),
    Place("a forward pre-hook", "M = nn.Identity()\nM.register_forward_pre_hook(lambda m, i: (i[0] * $n,))\ndef fn(x): return M(x) + 1"),
    Place("a hook of a tensor", "def fn(x):\n    y = x * 1\n    y.register_hook(lambda g: g * $n)\n    return y.sin()", True, 3),
    Place("a hook of a module's backward", "M = nn.Linear(2, 2)\n"
          "M.register_full_backward_hook(lambda m, i, o: (i[0] * $n,))\ndef fn(x): return M(x).sin()", True, 2),
    Place("a custom backward", _CUSTOM.replace("$forward", "2").replace("$backward", "$n"), True, 4),
    Place("a custom forward", _CUSTOM.replace("$forward", "$n").replace("$backward", "2"), True, 2),
    Place("both of a custom function", _CUSTOM.replace("$forward", "$n").replace("$backward", "$n"), True, 1),
    Place("a checkpoint", "def fn(x): return torch.utils.checkpoint.checkpoint(lambda y: (y * $n).sin(), x, use_reentrant=False)", True, 1),
    Place("vmap", "def fn(x): return torch.vmap(lambda row: row * $n)(x)", weight=1),
    Place("a gradient", "def fn(x): return torch.func.grad(lambda y: (y * y * $n).sum())(x)", weight=1),
    Place("a branch of cond", "def fn(x): return torch.cond(x.sum() > 0, lambda y: y * $n, lambda y: y.clone(), (x,))", weight=1),
    Place("a dispatch of a wrapper", _DISPATCH, weight=3),
    Place("a torch function of a subclass", _FUNCTION, weight=1),
    Place("without grad", "def fn(x):\n    with torch.no_grad(): return x * $n", weight=1),
    Place("a write into a tensor", "def fn(x):\n    y = torch.zeros(2)\n    y.add_(x * $n)\n    return y", weight=1),
    Place("a generator", "def parts(x):\n    yield x * $n\n    yield x\ndef fn(x): return sum(parts(x))", weight=1),
    Place("a default argument", "def fn(x, *more): return x * (lambda y, n=1: $n * n)(x)", weight=1),
)  # fmt: skip

#: how what a program reads is changed; "equal", "unread": nothing that it reads is another
CHANGES = (
    *(("replaced", 10), ("inside", 8), ("back and forth", 3), ("made anew", 3), ("by a thread", 2)),
    *(("by the region", 4), ("by the region inside", 2), ("removed", 3), ("appears", 3)),
    *(("before the backward", 4), ("equal", 2), ("unread", 4)),
)


@dataclass(frozen=True)
class Flag:
    """Torch's own state: how it is read and put, and two of its values."""

    name: str
    read: str
    put: str
    first: str
    second: str


FLAGS = (
    Flag("grad mode", "torch.is_grad_enabled()", "torch.set_grad_enabled($w)", "True", "False"),
    Flag("default dtype", "torch.get_default_dtype()", "torch.set_default_dtype($w)", "torch.float32", "torch.float64"),
    Flag("default device", "str(torch.get_default_device())", "torch.set_default_device($w)", "'cpu'", "'meta'"),
    Flag("deterministic", "torch.are_deterministic_algorithms_enabled()", "torch.use_deterministic_algorithms($w)", "False", "True"),
    Flag("deterministic warnings", "torch.is_deterministic_algorithms_warn_only_enabled()",
         "torch.use_deterministic_algorithms(False, warn_only=$w)", "False", "True"),
    Flag("debug mode", "torch.get_deterministic_debug_mode()", "torch.set_deterministic_debug_mode($w)", "0", "1"),
    Flag("fill uninitialized", "torch.utils.deterministic.fill_uninitialized_memory",
         "torch.utils.deterministic.fill_uninitialized_memory = $w", "True", "False"),
    Flag("matmul precision", "torch.get_float32_matmul_precision()", "torch.set_float32_matmul_precision($w)", "'highest'", "'high'"),
    Flag("anomaly mode", "torch.is_anomaly_enabled()", "torch.autograd.set_detect_anomaly($w)", "False", "True"),
    Flag("autocast", "torch.is_autocast_enabled('cpu')", "torch.set_autocast_enabled('cpu', $w)", "False", "True"),
    Flag("autocast dtype", "torch.get_autocast_dtype('cpu')", "torch.set_autocast_dtype('cpu', $w)", "torch.bfloat16", "torch.float16"),
    Flag("autocast cache", "torch.is_autocast_cache_enabled()", "torch.set_autocast_cache_enabled($w)", "True", "False"),
    Flag("mkldnn", "torch.backends.mkldnn.enabled", "torch.backends.mkldnn.set_flags($w)", "True", "False"),
    Flag("cudnn benchmark", "torch.backends.cudnn.benchmark", "torch.backends.cudnn.benchmark = $w", "False", "True"),
    Flag("cudnn deterministic", "torch.backends.cudnn.deterministic", "torch.backends.cudnn.deterministic = $w", "False", "True"),
    Flag("cudnn tf32", "torch.backends.cudnn.allow_tf32", "torch.backends.cudnn.allow_tf32 = $w", "True", "False"),
    Flag("math attention", "torch.backends.cuda.math_sdp_enabled()", "torch.backends.cuda.enable_math_sdp($w)", "True", "False"),
    Flag("flash attention", "torch.backends.cuda.flash_sdp_enabled()", "torch.backends.cuda.enable_flash_sdp($w)", "True", "False"),
    Flag("threads", "torch.get_num_threads()", "torch.set_num_threads($w)", "1", "2"),
    Flag("validation of distributions", "torch.distributions.Distribution._validate_args",
         "torch.distributions.Distribution.set_default_validate_args($w)", "True", "False"),
    Flag("checkpoint early stop", "torch.utils.checkpoint._enable_checkpoint_early_stop",
         "torch.utils.checkpoint._enable_checkpoint_early_stop = $w", "True", "False"),
    Flag("the recursion limit", "sys.getrecursionlimit()", "sys.setrecursionlimit($w)", "FIRST_LIMIT", "FIRST_LIMIT + 99"),
    Flag("numpy's errors", "np.geterr()['over']", "np.seterr(over=$w)", "'warn'", "'raise'"),
    Flag("the precision of decimals", "decimal.getcontext().prec", "setattr(decimal.getcontext(), 'prec', $w)", "28", "5"),
    Flag("the environment", "os.environ.get('ZZ_HELD')", "os.environ.__setitem__('ZZ_HELD', $w)", "'a'", "'b'"),
)  # fmt: skip

#: of a module: how it keeps a value, and how it uses what it keeps
TWINS = (
    ("a closure", "lambda: v", "s.h()"),
    ("a closure of a closure", "lambda: (lambda: v)()", "s.h()"),
    ("a default", "lambda k=v: k", "s.h()"),
    ("a keyword default", "lambda *, k=v: k", "s.h()"),
    ("a list of functions", "[lambda: v]", "s.h[0]()"),
    ("a dict of functions", "{'f': lambda: v}", "s.h['f']()"),
    ("a partial", "functools.partial(lambda a: a, v)", "s.h()"),
    ("a bound method", "Box(v).get", "s.h()"),
    ("a generator function", "counts(v)", "next(s.h())"),
    ("an object", "Box(v)", "s.h.k"),
    ("a slot", "Slots(v)", "s.h.k"),
    ("a list", "[v]", "s.h[0]"),
    ("a tuple", "(v, 1)", "s.h[0]"),
    ("a dict", "{'k': v}", "s.h['k']"),
    ("a class", "type('C', (), {'k': v})", "s.h.k"),
    ("an instance of a local class", "type('C', (), {'k': v})()", "s.h.k"),
    ("an object that is called", "Called(v)", "s.h()"),
    ("a namespace", "types.SimpleNamespace(k=v)", "s.h.k"),
    ("a value", "v", "s.h"),
    ("a named tuple", "Pair(v, 1)", "s.h.k"),
    ("a context variable", "(lambda c: (c.set(v), c)[1])(contextvars.ContextVar('c'))", "s.h.get()"),
    ("a layer", "Scale(1.0) if False else (lambda m: (setattr(m, 'q', v), m)[1])(nn.Identity())", "s.h.q"),
    ("a weak reference", "(lambda b: (setattr(s, 'kept', b), weakref.ref(b))[1])(Box(v))", "s.h().k"),
    ("a deque", "collections.deque([v])", "s.h[0]"),
    ("a proxy of a dict", "types.MappingProxyType({'k': v})", "s.h['k']"),
)
