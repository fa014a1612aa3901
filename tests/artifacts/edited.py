"""A program with places that an edit may change, and ``edited.py save|serve FOLDER``: what a process makes of the modules
``edit_*.py`` there, as an artifact and in a cache. Prints, as JSON, name -> way -> how it went.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

PROGRAM = """
import os, types
import torch
from torch.utils._pytree import tree_map
import subclass_trace as st

__version__ = "1.0"
SCALE, SETTINGS, OPTIONS = 0.5, {"bias": 1.0}, {}
ADDED, UNUSED = 0.0, 1
os.environ["EDITED " + __name__] = "one"

def helper(x, shift=1.0):
    return x * SCALE + SETTINGS["bias"] + shift

def keyword(x, *, by=2.0):
    return x / by

def unused(x):
    return x + 1

class Own(torch.Tensor):
    @staticmethod
    def __new__(cls, a):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)

    def __init__(self, a):
        self.a = a

    def __tensor_flatten__(self):
        return ["a"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["a"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = tree_map(lambda t: t.a if isinstance(t, Own) else t, args)
        out = func(*plain, **(kwargs or {}))
        return cls(out + ADDED) if func is torch.ops.aten.mul.Tensor else cls(out)

class Sub(Own):
    pass

STRETCH = 1.5

def stretched(x):
    return x * STRETCH

class Scaled(st.WrapperTensor, default="dequantize"):
    data_: torch.Tensor
    scale: float = 1.0

    def dequantize(self):
        return stretched(self.data_) * self.scale

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, grad):
        return grad * 3

class Base(torch.nn.Module):
    def shifted(self, x):
        return x + 1

class Other(torch.nn.Module):
    def shifted(self, x):
        return x + 2

class Model(Base):
    many = 2

    def __init__(self, activation, own, weight):
        super().__init__()
        self.own, self.weight, self.scaled = own, weight, Scaled(torch.ones(4), scale=2.0)
        self.activation, self.config = activation, types.SimpleNamespace(deep=[1, 2])

    @property
    def half(self):
        return 0.5

    def patched(self, x):
        return x

    def forward(self, x):
        y = keyword(helper(self.own)) * self.many * self.config.deep[1]
        y = self.shifted(self.patched(y) * self.half)
        y = y * (2 if os.environ["EDITED " + __name__] == "one" else 3)
        return Slow.apply(self.activation(y.a + x * self.weight)) + self.scaled

def patch(self, x):
    return x - 1

Model.patched = patch

def make():
    table = {"power": 2.0}

    def activation(x):
        return x * table["power"]

    own = torch.nn.Parameter(Own(torch.arange(4.0)), requires_grad=False)
    weight = torch.nn.Parameter(torch.full((4,), 0.25))
    return Model(activation, own, weight), torch.linspace(0, 1, 4).requires_grad_()
"""
#: what is edited -> the text, what it becomes
MATTERS = {
    "helper": ("return x * SCALE +", "return x * SCALE -"),
    "global constant": ("SCALE, SETTINGS, OPTIONS = 0.5", "SCALE, SETTINGS, OPTIONS = 0.25"),
    "item of a global": ('{"bias": 1.0}', '{"bias": 2.0}'),
    "default": ("shift=1.0", "shift=3.0"),
    "keyword default": ("by=2.0", "by=4.0"),
    "constant of __torch_dispatch__": ("ADDED, UNUSED = 0.0", "ADDED, UNUSED = 1.0"),
    "__torch_dispatch__": ("out = func(*plain", "out = -func(*plain"),
    "__tensor_unflatten__": ('return cls(inner["a"])', 'return cls(inner["a"].clone())'),
    "constant of a declared wrapper": ("STRETCH = 1.5", "STRETCH = 2.5"),
    "helper of a declared wrapper": ("return x * STRETCH", "return x + STRETCH"),
    "method of a declared wrapper": ("stretched(self.data_) * self.scale", "stretched(self.data_) / self.scale"),
    "field of a declared wrapper": ("scale=2.0)", "scale=4.0)"),
    "backward": ("return grad * 3", "return grad * 5"),
    "class attribute": ("many = 2", "many = 3"),
    "base class": ("class Model(Base)", "class Model(Other)"),
    "method of the base": ("return x + 1\n\nclass Other", "return x + 3\n\nclass Other"),
    "property": ("return 0.5", "return 0.125"),
    "patched method": ("return x - 1", "return x - 2"),
    "not patched": ("Model.patched = patch", ""),
    "closed-over dict": ('{"power": 2.0}', '{"power": 3.0}'),
    "closure": ('return x * table["power"]', 'return x + table["power"]'),
    "item of an object": ("deep=[1, 2]", "deep=[1, 3]"),
    "branch": ("(2 if os", "(4 if os"),
    "environment": ('= "one"', '= "two"'),
    "size of a parameter": ("torch.full((4,), 0.25)", "torch.full((1,), 0.25)"),
    "dtype of a parameter": ("torch.full((4,), 0.25)", "torch.full((4,), 0.25, dtype=torch.float64)"),
    "frozen parameter": ("torch.full((4,), 0.25))", "torch.full((4,), 0.25), requires_grad=False)"),
    "class of a parameter": ("Own(torch.arange(4.0))", "Sub(torch.arange(4.0))"),
    "library version": ('__version__ = "1.0"', '__version__ = "1.1"'),
    "option": ('OPTIONS = 0.5, {"bias": 1.0}, {}', "OPTIONS = 0.5, {\"bias\": 1.0}, {'dynamic': False}"),
}
SAME = {
    "nothing": ("", ""),
    "comment": ("return x * SCALE +", "# half of it\n    return x * SCALE +"),
    "blank lines": ("def keyword", "\n\n\n\ndef keyword"),
    "parentheses": ("return x / by", "return (x / by)"),
    "another function": ("return x + 1\n\nclass Own", "return x + 5\n\nclass Own"),
    "unused constant": ("ADDED, UNUSED = 0.0, 1", "ADDED, UNUSED = 0.0, 2"),
    "values of parameters": ("torch.full((4,), 0.25)", "torch.full((4,), 0.75)"),
    "values inside of a wrapper": ("torch.arange(4.0)", "torch.arange(1.0, 5.0)"),
    "values of arguments": ("torch.linspace(0, 1, 4)", "torch.linspace(0, 9, 4)"),
}
EDITS = MATTERS | SAME


def edited(names: Any) -> tuple[str, list[str]]:
    """The program after some edits, and which these are: the text of one may be gone by then."""
    text, done = PROGRAM, []
    for name in names:
        was, now = EDITS[name]
        if was in text:
            text = text.replace(was, now, 1) if was else text
            done.append(name)
    return text, done


def use(function: Any, x: Any) -> Any:
    """What a training step gives."""
    out = function(x)
    out.sum().backward()
    return [out.tolist(), x.grad.tolist(), *(p.grad.tolist() for p in function.parameters() if p.requires_grad)]


def save(module: Any, folder: Path) -> Any:
    import subclass_trace as st

    model, x = module.make()
    region = st.compile(model, frontend="trace", cache=True, **module.OPTIONS)
    use(region, x)
    return region.save(folder / f"{module.__name__}.st", x)


def serve(module: Any, folder: Path, traces: list[int]) -> Any:
    import subclass_trace as st

    found = {}
    path = folder / f"{module.__name__}.st"
    ways = {
        "strict": lambda model: st.load(path, model, frontend="trace", **module.OPTIONS),
        "lenient": lambda model: st.load(path, model, strict=False, frontend="trace", **module.OPTIONS),
        "cache": lambda model: st.compile(model, frontend="trace", cache=True, **module.OPTIONS),
        "verified": lambda model: st.compile(model, frontend="trace", cache=True, verify=True, **module.OPTIONS),
    }
    for way, make in ways.items():
        want = use(*module.make())
        model, x = module.make()
        traces.clear()
        try:
            region = make(model)
            equal = use(region, x) == want
            found[way] = {"traced": len(traces), "equal": equal, "explain": region.explain()[-600:]}
        except st.ArtifactError as error:
            found[way] = {"refused": [error.path, error.expected, error.got]}
    return found


def main() -> None:
    how, folder = sys.argv[1], Path(sys.argv[2])
    os.environ["SUBCLASS_TRACE_CACHE_DIR"] = str(folder / "cache")
    sys.path.insert(0, str(folder))
    from subclass_trace.capture.capture import Capture

    traces: list[int] = []
    capture = Capture.capture
    Capture.capture = lambda self, run: (traces.append(1), capture(self, run))[1]  # type: ignore[method-assign]
    names = sorted(path.stem for path in folder.glob("edit_*.py"))
    modules = [importlib.import_module(name) for name in names]
    print(json.dumps({m.__name__: save(m, folder) if how == "save" else serve(m, folder, traces) for m in modules}))


if __name__ == "__main__":
    main()
