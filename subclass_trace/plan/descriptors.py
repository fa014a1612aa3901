"""Descriptors: what each input and each output of a graph is. ``str`` of one is what people read.

>>> weight = Input("self.linear.weight", ("a",), kind="parameter")
>>> str(weight), str(GradientOf(Input("self.linear.weight", kind="parameter"), ("a",)))
('self.linear.weight.a', 'gradient of self.linear.weight.a')
>>> str(TangentOf(Result("result['loss']")))
"tangent of result['loss']"

A graph module has those of its outputs as ``module.meta["descriptors"]``, in order, and each
placeholder its own as ``node.meta["descriptor"]``. The idea is PyTorch's
(``torch/_functorch/_aot_autograd/descriptors.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from ..subclass.spec import Spec, leaf_ways
from .values import Recipe, accessors


@dataclass(frozen=True)
class Descriptor:
    """Something that a graph takes or gives.

    Attributes:
        path: of the value that the user has.
        leaf: names of the inner tensors on the way to the dense leaf that the graph has of it.
    """

    path: str
    leaf: tuple[str, ...] = ()
    prefix: ClassVar[str] = ""

    def __str__(self) -> str:
        return f"{self.prefix}{self.path}{''.join(f'.{name}' for name in self.leaf)}"


@dataclass(frozen=True)
class Input(Descriptor):
    """A dense leaf of an input.

    Attributes:
        kind: "argument", "parameter", "buffer", "optimizer state", "state" (a tensor that code
            reads by another name), or "gradient" (the ``.grad`` of another input).
        place: where the input stands (`state.place.Place`); of a gradient, where its owner does.
        also: the other inputs, or inner tensors, that are this very leaf.
    """

    kind: str = "argument"
    place: Any = None
    also: tuple[Input, ...] = ()

    @property
    def is_static(self) -> bool:
        """Is it alive between calls, in one piece of memory?"""
        return self.kind not in ("argument", "gradient")

    def __str__(self) -> str:
        return " and ".join([super().__str__(), *map(str, self.also)])


@dataclass(frozen=True)
class Size(Descriptor):
    """A number of the call: a size that no dense leaf carries, or an argument."""

    prefix: ClassVar[str] = "size "


@dataclass(frozen=True)
class Result(Descriptor):
    """A result of the call."""


@dataclass(frozen=True)
class Assigned(Descriptor):
    """What is put at a place when the call is done."""

    prefix: ClassVar[str] = "assigned: "


@dataclass(frozen=True)
class Intermediate(Descriptor):
    """A value, by its number, that results are views of, or that nobody gets."""

    prefix: ClassVar[str] = "intermediate "


@dataclass(frozen=True)
class SizeResult(Descriptor):
    """A number, by its place among those that the forward gives."""

    prefix: ClassVar[str] = "size "


@dataclass(frozen=True)
class Effect(Descriptor):
    """Computed for what that does: it draws random numbers, or has a registered effect."""

    path: str = ""


@dataclass(frozen=True)
class _Of:
    """A dense leaf (``leaf``) of what belongs to another value."""

    of: Descriptor | _Of
    leaf: tuple[str, ...] = ()
    prefix: ClassVar[str] = ""

    def __str__(self) -> str:
        return f"{self.prefix}{self.of}{''.join(f'.{name}' for name in self.leaf)}"


@dataclass(frozen=True)
class NewContents(_Of):
    """What is written to an input."""

    prefix: ClassVar[str] = "new "


@dataclass(frozen=True)
class TangentOf(_Of):
    """The tangent of a result, or of what is written to an input."""

    prefix: ClassVar[str] = "tangent of "


@dataclass(frozen=True)
class GradientOf(_Of):
    """The gradient of an input."""

    prefix: ClassVar[str] = "gradient of "


AnyDescriptor: TypeAlias = Descriptor | _Of
D = TypeVar("D", bound=AnyDescriptor)


def leaves_of(described: Iterable[D], specs: Iterable[Spec | None]) -> list[D]:
    """The descriptors of the dense leaves of values (None: there is no such value)."""
    rows = zip(described, specs, strict=True)
    return [replace(d, leaf=way) for d, spec in rows if spec is not None for way in leaf_ways(spec)]


def tangents_of(
    described: Iterable[AnyDescriptor], specs: Iterable[Spec | None]
) -> list[TangentOf]:
    """The descriptors of the leaves of the tangents of these values."""
    return leaves_of(map(TangentOf, described), specs)


def gradients_of(
    described: Iterable[AnyDescriptor], specs: Iterable[Spec | None]
) -> list[GradientOf]:
    """The descriptors of the leaves of the gradients of these inputs."""
    return leaves_of(map(GradientOf, described), specs)


def result_descriptors(
    result: Recipe, effects: Iterable[tuple[str, Recipe]], count: int
) -> list[Descriptor]:
    """What each of ``count`` flat outputs is: the first place in the result, or in what is assigned
    (with its path)."""
    found: dict[int, Descriptor] = {
        number: Result(path) for number, path in [*accessors(result, "result")][::-1]
    }
    for path, made in effects:
        for number, where in accessors(made, path):
            found.setdefault(number, Assigned(where))
    return [found.get(k, Descriptor("not returned")) for k in range(count)]


def forward_descriptors(
    described: Iterable[AnyDescriptor], specs: Iterable[Spec], sizes: int
) -> list[AnyDescriptor]:
    """What each output of a forward graph is: the leaves of its values, and so many numbers."""
    return [*leaves_of(described, specs), *(SizeResult(str(k)) for k in range(sizes))]
