"""`gradient_error`: what keeping activations in fewer bits does to each gradient, measured by running both partitions.

>>> import torch, subclass_trace as st
>>> x = torch.linspace(-1, 1, 4096).view(64, 64).requires_grad_()
>>> found = st.gradient_error(lambda x: (x @ x).sin(), (x,), st.MinCut(store="int8"))
>>> found.exact_bytes, found.stored_bytes, [a.form for a in found.activations]
(16384, 4352, ['int8'])
>>> 0 < found.worst.error < 0.02
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ..errors import OptionError, UnsupportedError
from ..options import Options
from ..partition.min_cut import MinCut
from ..report.tables import Table, bytes_text, shape_text
from ..report.text import render
from ..subclass.flatten import leaves_of
from .calls import CallSite
from .compile import Region, Specialization, region_of
from .outcome import flatten_results

Tensor = torch.Tensor


@dataclass(frozen=True)
class GradientRow:
    """One gradient.

    Attributes:
        path: of the input or parameter.
        norm: Euclidean norm of the exact gradient.
        error: norm of the difference over that norm; infinite where the exact gradient is zero and the other is not.
    """

    path: str
    norm: float
    error: float


@dataclass(frozen=True)
class StoredActivation:
    """A saved activation in another form.

    Attributes:
        name: graph node; ``operation``, ``where``: what made it, and ``file:line`` of the user's code.
        form: "int8", "fp8" or "cpu".
        exact_bytes: of the activation as it is; ``stored_bytes``: as it is kept, on the device.
    """

    name: str
    operation: str
    where: str | None
    shape: tuple[int, ...]
    dtype: str
    form: str
    exact_bytes: int
    stored_bytes: int


@dataclass(frozen=True)
class GradientReport:
    """The exact and the stored partition of one call, compared. ``print`` it.

    Attributes:
        function: its name.
        exact_bytes, stored_bytes: saved for the backward beyond inputs and results, on the device.
        gradients: one row for each input and parameter that gets a gradient.
        activations: what is kept in another form, and how.
    """

    function: str
    exact_bytes: int
    stored_bytes: int
    gradients: tuple[GradientRow, ...]
    activations: tuple[StoredActivation, ...]

    @property
    def worst(self) -> GradientRow:
        """The gradient with the largest relative error (a NaN counts as the largest)."""
        return max(self.gradients, key=lambda row: math.inf if math.isnan(row.error) else row.error)

    def to_dict(self) -> dict[str, Any]:
        """For JSON. Errors that are no numbers (infinite, NaN) are strings."""
        found = asdict(self)
        for row in (*found["gradients"], worst := asdict(self.worst)):
            for key in ("norm", "error"):
                row[key] = row[key] if math.isfinite(row[key]) else str(row[key])
        return {**found, "worst": worst}

    def __str__(self) -> str:
        share = f" ({self.stored_bytes / self.exact_bytes:.0%})" if self.exact_bytes else ""
        head = (
            f"gradient error of {self.function}: at most {self.worst.error:.2g}, of {self.worst.path}\n"
            f"saved for the backward: {bytes_text(self.exact_bytes)} exact, {bytes_text(self.stored_bytes)} stored{share}"
        )
        rows = tuple([(r.path, f"{r.norm:.3g}", f"{r.error:.2g}") for r in self.gradients])
        gradients = Table("gradients", ("of", "norm", "relative error"), rows, right=(1, 2))
        kept = tuple(
            [
                (
                    a.where or a.name,
                    a.operation,
                    shape_text(a.shape),
                    a.dtype,
                    a.form,
                    bytes_text(a.exact_bytes),
                    bytes_text(a.stored_bytes),
                )
                for a in self.activations
            ]
        )
        columns = ("where", "operation", "shape", "dtype", "as", "exact", "stored")
        activations = Table("activations in another form", columns, kept, right=(5, 6))
        return "\n\n".join([head, render(gradients), render(activations)])


def gradient_error(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    partitioner: MinCut,
    *,
    kwargs: Mapping[str, Any] | None = None,
    grad_outputs: Sequence[Tensor] | None = None,
) -> GradientReport:
    """Run ``function`` forward and backward under ``partitioner`` and without its ``store``, and compare all gradients.

    Both runs start from the same inputs, module states and random numbers, and leave all of them as they were.

    Args:
        function: a function or module; ``inputs``, ``kwargs``: its arguments, as for ``torch.autograd.gradcheck``.
        partitioner: with ``store``.
        grad_outputs: one for each differentiable result, in order. None: ones.

    Raises:
        OptionError: the partitioner stores nothing in another form, or ``function`` is none.
        UnsupportedError: nothing gets a gradient.
    """
    if not callable(function):
        raise OptionError(
            "there is nothing to run", path="function", expected="a function or a module", got=repr(function)
        )
    if not isinstance(partitioner, MinCut) or partitioner.store is None:
        raise OptionError(
            "there is nothing to compare",
            path="partitioner",
            expected='a MinCut with a store, such as MinCut(store="int8")',
            got=repr(partitioner),
        )
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    call = (tuple(inputs), dict(kwargs or {}))
    site = CallSite.of_function(function, *call)
    runs = []
    for cut in (replace(partitioner, store=None), partitioner):
        region = region_of(function, Options(partitioner=cut))
        with _unchanged(site):
            gradients = _gradients(region, call, site, grad_outputs)
        runs.append((gradients, region.specialize(*call[0], **call[1])))
    (exact, before), (stored, after) = runs
    if not exact:
        raise UnsupportedError("nothing gets a gradient", path=name, fix="pass inputs that require grad")
    rows = tuple([_row(path, exact[path], stored[path]) for path in exact])
    sizes = [sum(row.bytes for row in entry.saved) for entry in (before, after)]
    return GradientReport(name, sizes[0], sizes[1], rows, tuple(_activations(after)))


def _gradients(
    region: Region, call: tuple[Any, Any], site: CallSite, grad_outputs: Sequence[Tensor] | None
) -> dict[str, Tensor]:
    """Path -> gradient."""
    arguments, _ = site.arguments()
    wanted = [a for a in arguments if a.value.requires_grad]
    results, _ = flatten_results(region(*call[0], **call[1]))
    roots = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    if not roots or not wanted:
        return {}
    tangents = [torch.ones_like(r).detach() for r in roots] if grad_outputs is None else list(grad_outputs)
    found = torch.autograd.grad(roots, [a.value for a in wanted], tangents, allow_unused=True)
    return {str(a.path): g for a, g in zip(wanted, found, strict=True) if g is not None}


@contextmanager
def _unchanged(site: CallSite) -> Iterator[None]:
    """Tensors of the call, slots of modules and generators of random numbers are afterwards as they were."""
    tensors = {id(leaf): leaf for v in site.flat if isinstance(v, Tensor) for leaf in leaves_of(v)}
    contents = [(t, t.detach().clone()) for t in tensors.values()]
    slots = [(s, s.read()) for s in site.states]
    devices = sorted({t.device.index for t in tensors.values() if t.device.index is not None})
    kind = next((t.device.type for t in tensors.values() if t.device.index is not None), "cuda")
    try:
        with torch.random.fork_rng(devices, device_type=kind):
            yield
    finally:
        for slot, value in slots:
            if slot.read() is not value:
                getattr(slot.owner, slot.table)[slot.name] = value
        with torch.no_grad():
            for tensor, before in contents:
                if not torch.equal(tensor, before):  # versions do not tell: batch norm writes its statistics in silence
                    tensor.copy_(before)


def _row(path: str, exact: Tensor, stored: Tensor) -> GradientRow:
    pairs = zip(_numbers(exact), _numbers(stored), strict=True)
    squares = [(float((a - b).norm()) ** 2, float(a.norm()) ** 2) for a, b in pairs]
    difference, norm = (math.sqrt(sum(s[k] for s in squares)) for k in range(2))
    return GradientRow(path, norm, difference / norm if norm else math.inf if difference else 0.0)


def _numbers(gradient: Tensor) -> list[Tensor]:
    """Dense tensors whose differences mean something: inner tensors, or the values that a quantised wrapper stands for."""
    leaves = leaves_of(gradient)
    quantised = any(not (t.is_floating_point() or t.is_complex()) or t.dtype.itemsize < 2 for t in leaves)
    if quantised and hasattr(gradient, "dequantize"):
        leaves = leaves_of(gradient.dequantize())
    return [t.detach().to(torch.complex128 if t.is_complex() else torch.float64) for t in leaves]


def _activations(entry: Specialization) -> Iterator[StoredActivation]:
    values = {n.name: n.meta["val"] for n in entry.graphs.first.body if "val" in n.meta}
    for row in entry.saved:
        _, _, form = row.reason.partition(", as ")
        if form:
            x = values[row.name]
            shape, dtype = tuple(x.shape), str(x.dtype).removeprefix("torch.")
            size = x.numel() * x.dtype.itemsize
            yield StoredActivation(row.name, row.operation, row.where, shape, dtype, form, size, row.bytes)
