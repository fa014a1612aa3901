"""Special methods that a class has from elsewhere: of C for another slot, static ones, partials, other objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.state.special import special_of

CLASSES = """
import functools, operator
import torch

LOG, CFG = [], {"k": 2.0, "n": 1}
def noted(*args): LOG.append(len(args)); CFG["n"] += 1; return CFG["n"]

class Attr(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__
class Itself(dict):
    def __init__(self, **items): super().__init__(**items); self.__dict__ = self
class Plain: pass
class Names(dict): pass
def with_names(**items): o = Plain(); o.__dict__ = Names(items); return o
class Called(dict):
    __call__ = dict.__getitem__
    __contains__ = dict.get
class Static:
    __call__ = __len__ = __getitem__ = __contains__ = __add__ = __neg__ = __iadd__ = __index__ = staticmethod(noted)
    __float__ = __bool__ = staticmethod(lambda *a: float(noted()) > 0)
class Partial:
    __call__ = __len__ = __getitem__ = __mul__ = functools.partial(noted, 1)
class OfClass:
    n = 1
    @classmethod
    def __call__(cls, by=1): cls.n += by; return cls.n
    __len__ = __getitem__ = __call__
class Bound:
    __call__ = __len__ = Attr(n=3).__len__
    __setattr__ = CFG.__setitem__
class Other(list):
    __call__ = list.append
    __len__ = list.__sizeof__
    __eq__ = object.__eq__
    __getattr__ = lambda s, n: list.__getitem__(s, 0)
class Cached:
    __call__ = functools.lru_cache(None)(lambda s, k: noted() + k)
class Text(str):
    __call__ = str.upper
    __len__ = str.__hash__ and (lambda s: CFG["n"])
class Setting(object):
    def __init__(s): object.__setattr__(s, "held", {"a": 1.0})
    __setattr__ = lambda s, n, v: s.held.__setitem__(n, v)
    __getattr__ = lambda s, n: object.__getattribute__(s, "held")[n]
"""

#: what makes the object; what a call does with it; what changes it between two calls
PROGRAMS: dict[str, tuple[str, ...]] = {
    "attributes are items": ("Attr(n=1)", "o.n = o.n + 1; y = x * o.n"),
    "an attribute is deleted": ("Attr(n=1)", "o.t = 3; y = x * o.t; del o.t"),
    "a tensor is set": ("Attr(n=1)", "o.last = x.sum(); y = x * o.last"),
    "object's own way past it": ("Attr(n=1)", "object.__setattr__(o, 'm', o.n); o.n += 1; y = x * vars(o)['m']"),
    "its own namespace": ("Itself(k=1)", "y = x * o.k", "o.k += 4"),
    "its own namespace, by item": ("Itself(k=1)", "y = x * o['k'] + o.k", "o['k'] += 4"),
    "its own namespace, written": ("Itself(k=1)", "o.k += 1; o['z'] = o.k; y = x * o.k", "o.k += 4"),
    "its own namespace, an item written": ("Itself(k=1)", "o['k'] += 1; y = x * o.k", "o.k += 4"),
    "its own namespace, a tensor": ("Itself(k=torch.ones(2))", "y = x * o.k", "o.k = torch.ones(2) * 5"),
    "a namespace of a class": ("with_names(k=1)", "y = x * o.k", "o.k += 4"),
    "a namespace of a class, written": ("with_names(k=1)", "o.k += 1; y = x * o.k", "o.k += 4"),
    "an item that is called": ("Called(a=2.0)", "o['a'] += 1; y = x * o('a')"),
    "get for in": ("Called(a=0.0)", "o['a'] += 'a' in o; y = x + o['a']"),
    "static, called": ("Static()", "y = x * o(1, 2)"),
    "static, length": ("Static()", "y = x * len(o)"),
    "static, item": ("Static()", "y = x * o[3]"),
    "static, in": ("Static()", "y = x * (3 in o)"),
    "static, added": ("Static()", "y = x * (o + 1)"),
    "static, negative": ("Static()", "y = x * -o"),
    "static, truth": ("Static()", "y = x * (3 if o else 2)"),
    "static, float": ("Partial()", "y = x * (o * 2)"),
    "partial, called": ("Partial()", "y = x * o(3)"),
    "partial, length": ("Partial()", "y = x * len(o)"),
    "partial, item": ("Partial()", "y = x * o[3]"),
    "of the class": ("OfClass()", "y = x * o(2)"),
    "of the class, length": ("OfClass()", "y = x * len(o)"),
    "bound to another": ("Bound()", "y = x * o() * len(o)"),
    "set in another": ("Bound()", "o.k = CFG['k'] + 1; y = x * CFG['k']"),
    "append is call": ("Other([1.0])", "o(2.0); y = x * list.__len__(o) + list.__getitem__(o, 0)"),
    "object's equality": ("Other([1.0])", "y = x * (2 if o == Other([1.0]) else 3)"),
    "kept results": ("Cached()", "y = x * o(1)"),
    "a text that is called": ("Text('ab')", "y = x * len(o() + 'c')"),
    "a length of its own": ("Text('ab')", "y = x * len(o)"),
    "a method of a text": ("Text('a.b')", "y = x * len(o.split('.'))"),
    "all in a dict of its own": ("Setting()", "o.a = o.a + 1; y = x * o.a"),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_it_is_as_in_eager_mode(name: str) -> None:
    made, body, *outside = PROGRAMS[name]

    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        space: dict[str, Any] = {}
        exec(f"{CLASSES}\no = {made}\ndef f(x):\n    {body}\n    return y", space)
        region, found = wrap(space["f"]), []
        for call in range(4):
            if call == 2:
                space["CFG"]["n"] += 5
                exec("".join(outside), space)
            found.append(region(torch.ones(2)).tolist())
            o = space["o"]
            held = dict.copy(o) if isinstance(o, dict) else list(list.__iter__(o)) if isinstance(o, list) else None
            state = (held, dict(getattr(o, "__dict__", ())), space["OfClass"].n, space["CFG"], space["LOG"])
            found.append(repr(state).replace("'last': tensor(2.)", ""))
            assert "Fake" not in repr(state)
        return found

    assert run(st.compile) == run(lambda f: f)


def test_one_code_is_instrumented_for_all_of_a_kind() -> None:
    first, second = (type("C", (), {"__call__": {"a": k}.get}) for k in range(2))
    made = [special_of(cls, "__call__") for cls in (first, second)]
    assert made[0].__code__ is made[1].__code__ and [f(None, "a") for f in made] == [0, 1]
