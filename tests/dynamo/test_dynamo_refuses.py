"""What docs/dynamo.md says that Dynamo itself refuses: the same with ``backend="eager"``, and what ``st.compile`` does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from compare import dense, two
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention

import subclass_trace as st
from subclass_trace.zoo import Constant

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning"),
]


def masked() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True]))


def observer() -> tuple[Any, ...]:
    pytest.importorskip("torchao", reason="torchao is not installed: pip install 'subclass_trace[torchao]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.gptq.observer import GPTQObserverTensor
    return torch.randn(2, 8), GPTQObserverTensor.from_hp(torch.randn(8, 8))


@dataclass(frozen=True)
class Refused:
    """``runs``: ``st.compile`` runs the program; else it raises."""

    function: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    error: str
    runs: bool


PROGRAMS = {
    "no inner tensor": Refused(
        lambda x: x * 2, lambda: (Constant(2.0, (3, 3)),), "`tensor` needs to be a `FakeTensor`", runs=True
    ),
    "cond over wrappers": Refused(
        lambda x, p: torch.cond(p, lambda x: x.sin(), lambda x: x.cos() * 2, (x,)),
        lambda: (two(4), torch.tensor(True)),
        "fake tensor",
        runs=False,
    ),
    "scan over wrappers": Refused(
        lambda c, x: scan(lambda c, x: (c * x, (c + x).sin()), c, x), lambda: (two(3), two(5, 3)), "scan", runs=False
    ),
    "while_loop over wrappers": Refused(
        lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1],
        lambda: (two(3, grad=False),),
        "traceable wrapper subclasses",
        runs=False,
    ),
    "a masked tensor": Refused(lambda x: x * 2, lambda: (masked(),), "[Mm]asked", runs=False),
    "a class that branches on values": Refused(torch.nn.functional.linear, observer, "data-dependent", runs=False),
    "flex attention with gradients on a CPU": Refused(
        lambda q: flex_attention(q, q, q),
        lambda: (dense(1, 2, 16, 8),),
        "does not support backward on CPU",
        runs=False,
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "subclass_trace"])
def test_dynamo_refuses(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    args = program.make()
    with pytest.raises(Exception, match=program.error) as caught:
        torch.compile(program.function, backend=backend, fullgraph=True)(*args)
    assert not isinstance(caught.value, torch._dynamo.exc.BackendCompilerFailed)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_functional_front_end_does(name: str) -> None:
    program = PROGRAMS[name]
    if program.runs:
        got, expected = st.compile(program.function)(*program.make()), program.function(*program.make())
        assert type(got) is type(expected)
        return
    with pytest.raises(Exception):
        st.compile(program.function)(*program.make())
