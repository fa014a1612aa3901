"""Methods that reach into a tensor's memory: a traced tensor has none, and each is refused at the user's line."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

import subclass_trace as st
from subclass_trace.errors import DataDependentError, UnsupportedError

CLOSED_OVER = torch.ones(2)
CALLS = {
    "apply_": (lambda x: x.apply_(lambda v: v + 1), "for each element"),
    "apply_ of an intermediate": (lambda x: (x * 1).apply_(lambda v: v + 1), "for each element"),
    "map_": (lambda x: x.map_(x.clone(), lambda a, b: a + b), "for each element"),
    "map2_": (lambda x: x.map2_(x.clone(), x.clone(), lambda a, b, c: a + b + c), "for each element"),
    "numpy": (lambda x: torch.from_numpy(x.numpy()), r"\.numpy\(\)"),
    "np.asarray": (lambda x: torch.from_numpy(np.asarray(x)), "__array__"),
    "np.from_dlpack": (lambda x: torch.from_numpy(np.from_dlpack(x)), "__dlpack__"),
    "from_dlpack": (lambda x: torch.from_dlpack(x * 1), "__dlpack__"),
    "share_memory_": (lambda x: x.share_memory_() * 2, "share_memory_"),
    "pin_memory": (lambda x: x.pin_memory() * 2, "pin_memory"),
    "untyped_storage": (lambda x: x * x.untyped_storage()[1], "storage of an input"),
    "a filled storage": (lambda x: (x.untyped_storage().fill_(0), x * 1)[1], "storage of an input"),
    "format": (lambda x: f"{x.sum():.3f}", "formats the value"),
    "an array of a tensor that is closed over": (lambda x: x * float(CLOSED_OVER.numpy()[0]), r"\.numpy\(\)"),
    "torch.save": (lambda x: (torch.save(x, io.BytesIO()), x * 1)[1], "__reduce_ex__"),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", CALLS)
def test_refused_with_the_line(name: str) -> None:
    function, text = CALLS[name]
    x = torch.tensor([1.0, 2.0])
    with pytest.raises((DataDependentError, UnsupportedError), match=text) as caught:
        st.compile(function)(x)
    assert caught.value.path is not None and __file__ in caught.value.path
    assert torch.equal(x, torch.tensor([1.0, 2.0]))


def test_what_needs_no_memory_still_works() -> None:
    x = torch.tensor([1.0, 2.0])
    assert torch.equal(st.compile(lambda x: x * len(x.tolist()))(x), x * 2)
