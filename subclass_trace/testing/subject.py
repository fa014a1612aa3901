"""What is checked: a class, and how to write down fresh instances of it.

A subject is text: an expression with a gap for each dense argument (``"TwoTensor({0}, {1})"``), the imports and set-up
lines that it needs, and, where there is one, an expression for the projection to dense (``"{0}.dequantize()"``).
So the lines that make an instance are the same in the check and in the counterexample that it prints.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as s

from ..errors import OptionError
from . import strategies

if TYPE_CHECKING:
    from .script import Script

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)


@dataclass(frozen=True, eq=False)
class Subject:
    """A class under test.

    Attributes:
        cls: the class.
        make: expression with ``{0}``, ``{1}`` ... for the dense arguments.
        arity: the number of dense arguments.
        dense: expression with ``{0}`` for a wrapper that gives a dense tensor, or None. It must commute with the
            operations of the class up to ``tolerance``: ``x.a`` is one for a pair of tensors.
        imports, setup: lines in front of a program.
        namespace: what these lines and ``make`` need, ready to be used by ``exec``.
        sizes: strategy for the shape of the dense arguments; None for any.
        dtypes: dtypes of the dense arguments, the plainest first.
        tolerance: rtol and atol wherever numbers are compared.
        strategy: instances drawn directly; then ``make`` and ``arity`` are not used.
        exempt: id of a rule that says nothing about this subject -> why.
        notes: comments in front of a program, such as why it cannot run on its own.
    """

    cls: type
    make: str
    arity: int = 1
    dense: str | None = None
    imports: tuple[str, ...] = ()
    setup: str = ""
    namespace: Mapping[str, Any] = field(default_factory=dict)
    sizes: s.SearchStrategy[tuple[int, ...]] | None = None
    dtypes: tuple[torch.dtype, ...] = DTYPES
    tolerance: tuple[float, float] = (1e-5, 1e-6)
    strategy: s.SearchStrategy[torch.Tensor] | None = None
    exempt: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``module.Class``."""
        return f"{self.cls.__module__}.{self.cls.__qualname__}"

    @property
    def floating(self) -> tuple[torch.dtype, ...]:
        """The dtypes that can require grad."""
        return tuple(d for d in self.dtypes if d.is_floating_point)

    def shapes(self, min_dims: int = 0, min_side: int = 0) -> s.SearchStrategy[tuple[int, ...]]:
        """Shapes of the dense arguments."""
        if self.sizes is None:
            return strategies.shapes(min_dims=min_dims, max_dims=max(3, min_dims), min_side=min_side)
        return self.sizes.filter(lambda size: len(size) >= min_dims and all(n >= min_side for n in size))

    def expression(self, arguments: Sequence[str], script: Script) -> str:
        """The expression that makes an instance from the sources of its dense arguments."""
        if self.strategy is None:
            return self.make.format(*arguments)
        name = f"example_{len(script.lines)}"
        script.bind(name, script.draw(self.strategy))
        return f"rebuild({name}, torch.clone)"


def subject_of(
    cls: type,
    factory: str | Callable[..., torch.Tensor] | None = None,
    *,
    to_dense: str | Callable[[Any], torch.Tensor] | None = None,
    arity: int | None = None,
    sizes: s.SearchStrategy[tuple[int, ...]] | Sequence[tuple[int, ...]] | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
    tolerance: tuple[float, float] = (1e-5, 1e-6),
    strategy: s.SearchStrategy[torch.Tensor] | None = None,
    imports: Sequence[str] = (),
    setup: str = "",
    exempt: Mapping[str, str] | None = None,
) -> Subject:
    """A subject from a factory, given as a callable or as an expression with gaps.

    Args:
        factory: ``TwoTensor``, ``Float8Tensor.from_hp`` or ``"TwoTensor({0}, {0} * 2)"``; the class itself by default.
        to_dense: the projection to dense, callable or expression.
        arity: how many dense tensors the factory takes; read from the signature or the gaps by default.
        setup: lines to run once in front of everything (a device mesh).
        exempt: rules that say nothing about this class, with the reason, which the report shows.

    Raises:
        OptionError: the number of arguments cannot be found.
    """
    names: dict[str, Any] = {"torch": torch}
    lines = list(imports)
    notes: list[str] = []
    for line in (*lines, setup):
        exec(line, names)
    _name_of(cls, names, lines, notes)
    make_ = cls if factory is None else factory
    if isinstance(make_, str):
        make = make_
        count = arity if arity is not None else _gaps(make)
    else:
        count = arity if arity is not None else _arguments(make_)
        make = f"{_name_of(make_, names, lines, notes)}({', '.join(f'{{{k}}}' for k in range(count))})"
    if callable(to_dense):
        to_dense = f"{_name_of(to_dense, names, lines, notes)}({{0}})"
    if isinstance(sizes, Sequence):
        sizes = s.sampled_from([tuple(size) for size in sizes])
    return Subject(
        cls, make, count, to_dense, tuple(dict.fromkeys(lines)), setup, names, sizes, tuple(dtypes), tolerance, strategy,
        exempt or {}, tuple(notes),
    )  # fmt: skip


def _name_of(value: Any, names: dict[str, Any], lines: list[str], notes: list[str]) -> str:
    """The text that stands for a class or function in a program; adds its import, or a note that it has none."""
    if inspect.ismethod(value) and isinstance(value.__self__, type):
        return f"{_name_of(value.__self__, names, lines, notes)}.{value.__name__}"
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", "factory")
    found: Any = sys.modules.get(module or "")
    for part in qualname.split("."):
        found = getattr(found, part, None)
    head = qualname.split(".")[0]
    if found is value and module != "__main__":
        lines.append(f"from {module} import {head}")
        names[head] = getattr(sys.modules[module or ""], head)
        return str(qualname)
    name = "factory" if "lambda" in qualname else qualname.split(".")[-1]
    while name in names and names[name] is not value:
        name += "_"
    names[name] = value
    notes.append(f"{name} cannot be imported: put its definition in front to run this")
    return name


def _gaps(make: str) -> int:
    count = 0
    while f"{{{count}}}" in make:
        count += 1
    return count


def _arguments(factory: Callable[..., Any]) -> int:
    target: Any = factory
    if isinstance(factory, type):
        target = factory.__init__ if factory.__init__ is not torch.Tensor.__init__ else factory.__new__  # type: ignore[misc]
        if not inspect.isfunction(target):
            target = factory.__new__
    try:
        parameters = list(inspect.signature(target).parameters.values())[isinstance(factory, type) :]
    except (TypeError, ValueError):
        parameters = []
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not needed:
        raise OptionError(
            f"cannot see how many dense tensors {factory!r} takes",
            fix="give arity=, or an expression such as 'Cls({0})'",
        )
    return len(needed)
