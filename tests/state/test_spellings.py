"""Each special method, spelled in each way that Python has: what it reads is compared, what it writes is done in each
call. (All earlier generators drew it as a ``def``, and the commonest other spellings were wrong.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st

WORLD = """
import functools, operator, types
LOG, CFG = [], {{"v": 2}}

def impl(*args):
    LOG.append(len(args))
    return {value}

class Called:
    def __call__(self, *args): return impl(*args)

class Gets:
    def __get__(self, o, owner=None): return impl

class Of:
    def method(self, *args): return impl(*args)
    def two(self, one, *args): return impl(*args)

def wrapped(function):
    @functools.wraps(function)
    def inner(*args): return function(*args)
    return inner

class Base({base}): pass

class C(Base):
    def plain(self, *args): return impl(*args)
    {name} = {way}
"""
#: how a special method is written; ``plain``: a function of the object and the arguments
WAYS = {
    "def": "plain",
    "lambda": "lambda self, *args: impl(*args)",
    "partialmethod": "functools.partialmethod(Of.two, 1)",
    "partial": "functools.partial(impl)",
    "staticmethod": "staticmethod(impl)",
    "classmethod": "classmethod(lambda cls, *args: impl(*args))",
    "property": "property(lambda self: impl)",
    "cached_property": "functools.cached_property(lambda self: impl)",
    "singledispatchmethod": "functools.singledispatchmethod(plain)",
    "an object that is called": "Called()",
    "a descriptor": "Gets()",
    "wraps": "wrapped(plain)",
    "wraps of a static one": "staticmethod(wrapped(impl))",
    "bound to another object": "Of().method",
    "a bound method by hand": "types.MethodType(Of.two, 1)",
}
#: special method -> what asks for it, what it returns, base of the class
ASKED = {
    **{f"__{name}__": (f"o{sign}1", "CFG['v']", "") for name, sign in {"add": "+", "matmul": "@", "lt": "<"}.items()},
    **{f"__{name}__": (f"{sign}o", "CFG['v']", "") for name, sign in {"neg": "-", "invert": "~"}.items()},
    "__radd__": ("1 + o", "CFG['v']", ""),
    "__eq__": ("(2 if o == 1 else 3)", "CFG['v'] > 3", ""),
    "__bool__": ("(2 if o else 3)", "CFG['v'] > 3", ""),
    "__contains__": ("('k' in o) + 1", "CFG['v'] > 3", ""),
    "__getitem__": ("o['a']", "CFG['v']", ""),
    "__missing__": ("o['a']", "CFG['v']", "dict"),
    "__call__": ("o(1)", "CFG['v']", ""),
    "__len__": ("len(o)", "CFG['v']", ""),
    "__index__": ("x[: o].sum() + [5, 6, 7, 8, 9][o]", "CFG['v']", ""),
    "__int__": ("int(o)", "CFG['v']", ""),
    "__float__": ("float(o)", "float(CFG['v'])", ""),
    "__abs__": ("abs(o)", "CFG['v']", ""),
    "__round__": ("round(o)", "CFG['v']", ""),
    "__iter__": ("sum(o)", "iter([CFG['v'], 1])", ""),
    "__reversed__": ("[*reversed(o)][0]", "iter([CFG['v'], 1])", ""),
    "__length_hint__": ("operator.length_hint(o)", "CFG['v']", ""),
    "__str__": ("float(str(o))", "str(CFG['v'])", ""),
    "__repr__": ("float(repr(o))", "str(CFG['v'])", ""),
    "__format__": ("float(f'{o}') + float(format(o))", "str(CFG['v'])", ""),
    "__hash__": ("hash(o)", "CFG['v']", ""),
    "__dir__": ("len(dir(o))", "['a'] * CFG['v']", ""),
    "__getattr__": ("o.missing", "CFG['v']", ""),
    "__setattr__": ("(setattr(o, 'k', 1) or 2)", "None", ""),
    "__delattr__": ("(delattr(o, 'k') or 2)", "None", ""),
    "__setitem__": ("(operator.setitem(o, 'k', 1) or 2)", "None", ""),
    "__enter__": ("entered(o)", "CFG['v']", ""),
    "__init__": ("(C() is not None)", "None", ""),
}
PROGRAMS = [(name, way) for name in ASKED for way in WAYS]


@pytest.mark.sweep(every=7)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "way"), PROGRAMS)
def test_it_is_as_in_eager_mode(name: str, way: str) -> None:
    asked, value, base = ASKED[name]
    source = WORLD.format(value=value, base=base, name=name, way=WAYS[way])
    if name == "__enter__":
        source += "    def __exit__(self, *error): LOG.append('left')\n"
        source += "def entered(o):\n    with o as got: return got\n"
    made = "None" if name == "__init__" else "C()"
    source += f"o = {made}\ndef f(x): return x * ({asked})\n"

    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        space: dict[str, Any] = {}
        exec(source, space)
        region, found = wrap(space["f"]), []
        for value in (2, 2, 2, 4, 4):
            space["CFG"]["v"] = value
            try:
                found.append(region(torch.ones(5)).tolist())
            except (TypeError, AttributeError, IndexError) as error:
                found.append(type(error).__name__)
            found.append([*space["LOG"]])
        return found

    assert run(st.compile) == run(lambda f: f)
