"""Where nothing changes between calls, nothing but the pins is compared: each program is called several times."""

from __future__ import annotations

import contextvars
import enum
import functools
import logging
import threading
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace.runtime.pins import Pins
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


@dataclass
class Config:
    scale: float = 2.0
    sizes: list[int] = field(default_factory=lambda: [1, 2])


class Slots:
    __slots__ = ("k",)

    def __init__(self) -> None:
        self.k = 2.0


class Mode(enum.Enum):
    FAST = 1


class Logs(logging.Logger):
    @functools.lru_cache(None)  # noqa: B019
    def once(self, text: str) -> int:
        return len(text)


LOG, CONFIG, SLOTS, MODE = Logs("logs"), Config(), Slots(), Mode.FAST
LOCAL, VARIABLE = threading.local(), contextvars.ContextVar("variable", default=3)
LOCAL.k = 2.0
ORDERED, DEFAULT, FUNCTIONS = OrderedDict(a=1, b=2), defaultdict(int, a=1), {"double": lambda x: x * 2}
REFERENCE, SPACE, BOUND = weakref.ref(CONFIG), types.SimpleNamespace(k=[1.0]), CONFIG.sizes.count
MODEL = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0), nn.BatchNorm1d(3))
BUFFERS = nn.BatchNorm1d(3).eval()


def _flagged(x: Tensor) -> Tensor:
    blas = torch.backends.cuda.preferred_blas_library()
    known = torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu"), blas
    return x * sum(k is not None for k in known)


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "a model": lambda x: MODEL(x),
    "a model in eval mode": lambda x: BUFFERS(x),
    "a dataclass": lambda x: x * CONFIG.scale + len(CONFIG.sizes),
    "slots": lambda x: x * SLOTS.k,
    "an enum": lambda x: x * MODE.value if MODE is Mode.FAST else x,
    "a method behind a cache": lambda x: x * LOG.once("abc"),
    "a thread-local": lambda x: x * LOCAL.k,
    "a context variable": lambda x: x * VARIABLE.get(),
    "an ordered dict": lambda x: x * sum(ORDERED.values()) if ORDERED else x,
    "a default dict": lambda x: x * DEFAULT["a"],
    "functions in a dict": lambda x: FUNCTIONS["double"](x),
    "a weak reference": lambda x: x * REFERENCE().scale,
    "a namespace": lambda x: x * SPACE.k[0],
    "a method of C": lambda x: x * BOUND(1),
    "flags": _flagged,
    "a branch": lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,)),
    "a hook": lambda x: (x * 1).register_hook(lambda g: g * CONFIG.scale) and x * 2,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: TwoTensor(t, t.clone())], ids=["dense", "wrapper"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sweep(every=3)
def test_nothing_is_compared_again(name: str, wrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith(("a branch", "a model")) and wrap(torch.ones(1)).__class__ is not Tensor:
        pytest.skip("the operator takes dense tensors, the model's statistics are dense")
    looked: list[str] = []
    for method in ("differs", "why"):
        of = getattr(Pins, method)

        def noted(self: Pins, of: Any = of, method: str = method) -> Any:
            looked.append(method)
            return of(self)

        monkeypatch.setattr(Pins, method, noted)
    region = st.compile(PROGRAMS[name])
    for call in range(6):
        if call == 4:
            looked.clear()
        x = wrap(torch.ones(4, 3)).requires_grad_()
        region(x).sum().backward()
    assert looked == [], region.explain()
