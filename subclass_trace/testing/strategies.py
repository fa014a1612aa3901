"""Hypothesis strategies for tests of one's own: instances of a class, and calls of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as s

from .calls import section
from .operands import LAYOUTS, SMALL, Variant, gap, operands_of
from .resolve import REGISTERED, resolve


def wrappers(
    target: Any, *, floating: bool = False, contexts: bool = True, **options: Any
) -> s.SearchStrategy[torch.Tensor]:
    """Instances of a wrapper class; they shrink to the smallest and plainest.

    Args:
        target: what `check` takes: a class, a factory, a name, a subject.
        floating: those of a floating point dtype.
        contexts: also those of the factory with another number, where it has one (`scale=1.5`):
            their contexts differ.
        options: how to build it, see `subject.subject_of`.

    Raises:
        OptionError: no instance can be built.
    """
    subject = resolve(target, **options)
    others: tuple[str, ...] = ()
    if contexts:
        try:
            others = Variant.makes(operands_of(subject).variants)
        except Exception:  # the class cannot be built in the sizes of the sweep
            others = ()

    def made(
        make: str, shape: tuple[int, ...], dtype: torch.dtype, layout: str, seed: int
    ) -> torch.Tensor | None:
        gaps = [gap(shape, dtype, seed + 10 * k, layout=layout) for k in range(subject.arity)]
        try:
            found: torch.Tensor = eval(make.format(*gaps), dict(subject.namespace))
        except Exception:  # sizes or dtypes that the class does not have
            return None
        return found

    found = s.builds(
        made,
        s.sampled_from((subject.make, *others)),
        s.sampled_from(subject.sizes or SMALL),
        s.sampled_from(subject.floating if floating else subject.dtypes),
        s.sampled_from(LAYOUTS),
        s.integers(1, 9),
    )
    return found.filter(lambda x: x is not None)  # type: ignore[return-value]


def programs() -> s.SearchStrategy[Callable[[Any, Any], Any]]:
    """Programs of two wrappers, or of any two tensors: calls that models make. They shrink to
    ``x + y``."""
    # those are for matrices, and for what has a first row
    known = [t for t in section("arithmetic", "pointwise") if "tri" not in t and "[" not in t]
    texts = [t for t in known if not set(_names(t)) - {"x", "y", "torch"}]
    return s.sampled_from(texts).map(_function)


def _names(text: str) -> tuple[str, ...]:
    return tuple(n for n in compile(text, "<call>", "eval").co_names if len(n) == 1 or n == "F")


def _function(text: str) -> Callable[[Any, Any], Any]:
    made: Callable[[Any, Any], Any] = eval(f"lambda x, y: {text}", {"torch": torch})
    made.__name__ = made.__qualname__ = text
    return made


def register_strategy(
    cls: type, factory: str | Callable[..., torch.Tensor], **options: Any
) -> None:
    """Tell the kit, and ``hypothesis.strategies.from_type``, how to build instances of a class.

    Args:
        factory: a callable or expression that makes an instance from dense tensors.
        options: the other arguments of `subject.subject_of`: ``to_dense``, ``sizes``, ``dtypes``,
            ``tolerance``.
    """
    REGISTERED[cls] = {"factory": factory, **options}
    s.register_type_strategy(cls, lambda found: wrappers(found))
