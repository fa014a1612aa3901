"""Operations that take a size where torch's schema has a number: one specialization for all sizes, and equal to eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from called_functions import names_called
from torch.utils.checkpoint import checkpoint

import subclass_trace as st
from subclass_trace.capture.sized import SIZES, operations
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
#: none, one, and what is beyond the smallest sizes
NUMBERS = (5, 6, 9, 3, 2, 1, 0, 4)


def _of_default_dtype(n: Any) -> Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        return torch.hann_window(n)
    finally:
        torch.set_default_dtype(torch.float32)


def _of_default_device(n: Any) -> Tensor:
    with torch.device("meta"):
        return torch.linspace(0, 1, n)


#: what is made of a number, and how many specializations that takes beside one for a size 0 and one for a size 1
MADE: dict[str, tuple[Callable[[Any], Any], int]] = {
    "linspace": (lambda n: torch.linspace(0, 1, n), 2),
    "linspace by names": (lambda n: torch.linspace(start=1, end=-2.5, steps=n, dtype=torch.float64), 2),
    "linspace of sizes": (lambda n: torch.linspace(-n, n / 3, n), 2),
    "linspace of integers": (lambda n: torch.linspace(0, 9, n, dtype=torch.int32), 2),
    "linspace of complex numbers": (lambda n: torch.linspace(0, 2j, n), 2),
    "linspace that requires grad": (lambda n: torch.linspace(0, 1, n, requires_grad=True), 2),
    "linspace of tensors": (lambda n: torch.linspace(torch.tensor(2.0), torch.tensor(3), n), 2),
    "logspace": (lambda n: torch.logspace(0, 2, n, base=2), 2),
    "bartlett": (lambda n: torch.bartlett_window(n), 2),
    "blackman": (lambda n: torch.blackman_window(n, periodic=False, dtype=torch.float64), 2),
    "hamming": (lambda n: torch.hamming_window(n, True, 0.5, beta=n / 10), 2),
    "hann": (lambda n: torch.hann_window(n, False), 2),
    "kaiser": (lambda n: torch.kaiser_window(n, True, 8), 2),
    "signal": (lambda n: torch.signal.windows.general_hamming(n, alpha=0.3), 3),
    "frequencies": (lambda n: torch.fft.fftfreq(n + 1, 1 / (n + 1)), 2),
    "real frequencies": (lambda n: torch.fft.rfftfreq(n + 1, d=0.5), 2),
    "lower": (lambda n: torch.tril_indices(n, n), 2),
    "lower, wide": (lambda n: torch.tril_indices(3, n, n - 4, dtype=torch.int32), 2),
    "upper": (lambda n: torch.triu_indices(n, 4, 1), 2),
    "upper, high": (lambda n: torch.triu_indices(n + 2, n, -n), 2),
    "less": (lambda n: torch.hann_window(n - 3), 2),
    "no matrix": (lambda n: torch.tril_indices(2, n - 3), 2),
    "no window": (lambda n: torch.kaiser_window(n, dtype=torch.int64), 0),
    "no such option": (lambda n: torch.linspace(0, 1, steps=n, base=3), 0),  # type: ignore[call-overload]
    "default dtype": (_of_default_dtype, 2),
    "default device": (_of_default_device, 2),
    "of a shape that is used": (lambda n: torch.linspace(0, 1, n).expand(2, n).sum(0).reshape(n, 1), 2),
    "written": (lambda n: torch.linspace(0, 1, n).mul_(2), 2),
}


def _shown(made: Any) -> Any:
    if not isinstance(made, Tensor):
        return made
    return str(made), made.stride(), made.dtype, made.device, made.requires_grad, made._version, made.is_inference()


def _run(f: Callable[[Any], Any], *args: Any) -> Any:
    try:
        return _shown(f(*args))
    except (RuntimeError, TypeError) as error:
        return type(error), str(error).partition("\n")[0]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_as_in_eager_for_all_sizes(name: str, dynamic: bool) -> None:
    """Values, dtypes, versions and errors."""
    make, count = MADE[name]
    region = st.compile(lambda x: make(x.shape[0]), dynamic=dynamic)
    for n in NUMBERS:
        assert _run(region, torch.ones(n)) == _run(make, n)
    # Those that are given a number less than 0 raise while they are traced, and leave none.
    assert len(region.specializations) <= count + 2


def test_all_operations_have_a_case() -> None:
    """`SIZES` has none that is not called above."""
    assert names_called(partial(_run, make, 5) for make, _ in MADE.values()) >= set(SIZES)


def test_places_of_a_matrix() -> None:
    """Their number, for all shapes and diagonals: negative ones, and those outside of the matrix."""
    for rows in range(4):
        for columns in range(4):
            for offset in range(-5, 6):
                given = {"row": rows, "col": columns, "offset": offset}
                assert SIZES["tril_indices"](given) == torch.tril_indices(rows, columns, offset).shape
                assert SIZES["triu_indices"](given) == torch.triu_indices(rows, columns, offset).shape


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_differentiated(backend: str) -> None:
    """A wrapper, with gradients, in a checkpoint too: two specializations."""

    def spaced(x: Any) -> Any:
        return (x * torch.linspace(0.1, x.shape[0], x.shape[0])).sin() * torch.hann_window(x.shape[0])

    def f(x: Any) -> Any:
        return checkpoint(spaced, x, use_reentrant=False) + spaced(x)

    region = st.compile(f, backend=backend)
    for n in (4, 5, 7, 8):
        results = []
        for g in (f, region):
            x = TwoTensor(torch.arange(n * 1.0), torch.ones(n)).requires_grad_()
            out = g(x)
            out.backward(TwoTensor(torch.ones(n), torch.full((n,), 2.0)))
            results.append([out.a, out.b, x.grad.a, x.grad.b])  # type: ignore[union-attr]
        exact = {"rtol": 0, "atol": 0} if backend == "eager" else {}
        torch.testing.assert_close(results[1], results[0], **exact)
    assert len(region.specializations) == 2


def test_number_from_inside_a_tensor() -> None:
    """One specialization, and eager's error in the call."""
    region = st.compile(lambda x: torch.hann_window(int(x)) * 2)
    for n in (5, 6, 1, 0):
        assert torch.equal(region(torch.tensor(n)), torch.hann_window(n) * 2)
    with pytest.raises(RuntimeError, match="hann_window requires non-negative window_length, got window_length=-2"):
        region(torch.tensor(-2))
    assert len(region.specializations) == 1


def test_under_vmap_and_in_inference_mode() -> None:
    """Inside a transform of the region's, and around it."""
    region = st.compile(lambda x: torch.vmap(lambda row: row * torch.linspace(0, 1, row.shape[0]))(x))
    for n in (4, 5, 6):
        assert torch.equal(region(torch.ones(2, n)), torch.linspace(0, 1, n).expand(2, n))
    window = st.compile(lambda x: torch.hann_window(x.shape[0]), dynamic=True)
    for n in (4, 5, 6):
        with torch.inference_mode():
            assert _run(window, torch.ones(n)) == _run(torch.hann_window, n)


def test_operations_compute_what_those_of_torch_do() -> None:
    """Also where no back end of ours calls them."""
    made = operations("hann_window")(6, False, dtype=torch.float64)
    assert torch.equal(made, torch.hann_window(6, False, dtype=torch.float64)) and made._version == 0


def _left(x: Tensor) -> Iterator[Tensor]:
    yield torch.linspace(0, 1, x.shape[0], out=torch.empty(x.shape[0]))
    yield torch.ops.aten.linspace(0, 1, x.shape[0])


def test_what_is_left_to_torch() -> None:
    """Each size has a specialization, which names the line."""
    region = st.compile(lambda x: tuple(_left(x)))
    for n in (4, 5, 6):
        for a, b in zip(region(torch.ones(n)), _left(torch.ones(n)), strict=True):
            assert torch.equal(a, b) and a._version == b._version
    assert len(region.specializations) == 3
    assert f"{__file__}:{_left.__code__.co_firstlineno + 1}" in region.specializations[-1].made_numbers[0]
