"""Trying a factory out: does it give instances, of which sizes and dtypes, and what is not said about them.

`completed` takes a `Subject` as the user has described it and adds what he left out: sizes and dtypes that the factory
takes, the projection to dense, a tolerance, and a way to make instances with another context.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..errors import OptionError
from ..subclass.protocol import why_not_traceable
from . import strategies
from .probes import kept_arguments
from .subject import Subject, parameters_of

#: names of methods that give the dense value
_PROJECTIONS = ("to_dense", "dequantize", "full_tensor", "dense")
_TRIALS = ((2, 3), (2,), (4, 4), (32, 32))
#: sizes to try with a class that takes none of the small ones
_LARGE = ((32, 32), (32, 64), (64, 32), (64, 64), (16, 16), (16, 32), (128, 128), (128, 256), (64,), (128,), (256,))
#: rtol and atol for classes that round; the second for those with very few bits
_COARSE, _VERY_COARSE = 0.2, 0.5


def completed(subject: Subject, options: Mapping[str, Any]) -> Subject:
    """The subject with all that ``options`` do not say.

    Raises:
        OptionError: the factory gives nothing, or something else than the class; or the projection does not work.
    """
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        if "sizes" not in options:
            subject = _with_sizes(subject)
        if "dtypes" not in options:
            subject = _with_dtypes(subject)
        _check_factory(subject)
        if subject.derived or callable(options.get("factory")):
            subject = _with_variants(subject)
        if "to_dense" in options:
            _check_projection(subject)
        else:
            subject = _with_projection(subject)
        return subject if "tolerance" in options else _with_tolerance(subject)


# ------------------------------------------------------------------------------------------------------ one instance
def build(subject: Subject, shape: tuple[int, ...], dtype: torch.dtype | None = None, make: str | None = None) -> Any:
    """What the factory gives for dense tensors of this shape. Raises what it raises."""
    dtype = subject.dtypes[0] if dtype is None else dtype
    dense = {f"_dense{k}": (torch.ones(shape) * (k + 1)).to(dtype) for k in range(subject.arity)}
    # the gaps hold names, so that whatever the author writes behind a gap means the tensor
    made = eval((make or subject.make).format(*dense), {**subject.namespace, **dense})
    if hasattr(type(made), "__tensor_flatten__"):
        made.__tensor_flatten__()
    return made


def _trials(subject: Subject) -> tuple[tuple[int, ...], ...]:
    """Sizes to try: those that the subject has, if they are listed."""
    return subject.sizes[:8] or (*_TRIALS, *(shape for shape in _LARGE if shape not in _TRIALS))


def instances(subject: Subject) -> Iterator[Any]:
    """Tensors that the factory gives for a few sizes; nothing where it raises."""
    for shape in _trials(subject):
        for dtype in subject.dtypes:
            try:
                made = build(subject, shape, dtype)
            except Exception:  # sizes or dtypes that the class does not have
                continue
            if isinstance(made, torch.Tensor):
                yield made
            break


def why_not_built(subject: Subject) -> str:
    """What the factory says to, or gives for, the first of the sizes that are tried."""
    try:
        made = build(subject, _trials(subject)[0])
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return f"a {type(made).__qualname__}"


def _takes(subject: Subject, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> bool:
    try:
        build(subject, shape, dtype)
    except Exception:
        return False
    return True


# ------------------------------------------------------------------------------------------------ what the user says
def _check_factory(subject: Subject) -> None:
    found = next(instances(subject), None)
    cls = subject.cls
    if isinstance(found, cls):
        return
    trials = _trials(subject)
    raise OptionError(
        f"there is no way to build an instance: {subject.make} gives no {cls.__qualname__}",
        expected=f"a {cls.__qualname__} for dense tensors of some size; {len(trials)} were tried, such as {trials[0]}",
        got=why_not_built(subject) if found is None else f"a {type(found).__qualname__}",
        fix="give a factory= (--factory) such as "
        f"'{cls.__qualname__}({{0}})', of names of {cls.__module__} and torch; and sizes= and dtypes= (--sizes, "
        "--dtypes) that it takes",
    )


def _check_projection(subject: Subject) -> None:
    said = None
    for made in instances(subject) if subject.dense is not None else ():
        try:
            dense = _project(subject, made)
        except Exception as error:  # perhaps for these sizes only
            said = said or f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        if isinstance(dense, torch.Tensor) and why_not_traceable(dense) is not None:
            return
        said = said or f"a {type(dense).__qualname__}"
    if said is not None:
        raise OptionError(
            f"the projection {subject.dense} gives no dense tensor",
            expected=f"a dense tensor for a {subject.cls.__qualname__}",
            got=said,
            fix="name an attribute or a method of the class: to_dense= (--to-dense '{0}.dequantize()')",
        )


def _project(subject: Subject, made: Any) -> Any:
    assert subject.dense is not None
    return eval(subject.dense.format("_made"), {**subject.namespace, "_made": made})


# --------------------------------------------------------------------------------------------- what he does not say
def _with_sizes(subject: Subject) -> Subject:
    """The subject with the sizes that its factory takes, if it refuses some: a draw that it refuses costs time."""
    dtype = next((d for d in subject.dtypes if any(_takes(subject, shape, d) for shape in _trials(subject))), None)
    small = [shape for shape in strategies.SMALL if _takes(subject, shape, dtype)]
    if len(small) == len(strategies.SMALL):
        return subject
    taken = tuple(shape for shape in strategies.all_shapes() if _takes(subject, shape, dtype))
    if taken:
        return replace(subject, sizes=taken)
    large = tuple(shape for shape in _LARGE if _takes(subject, shape, dtype))[:4]
    if not large:
        return subject
    note = f"{subject.cls.__qualname__} refuses small tensors, so it is made of {', '.join(map(str, large))}"
    return replace(subject, sizes=large, notes=(*subject.notes, note))


def _with_dtypes(subject: Subject) -> Subject:
    """The subject with the dtypes that its factory takes."""
    taken = tuple(d for d in subject.dtypes if any(_takes(subject, shape, d) for shape in _trials(subject)))
    return replace(subject, dtypes=taken) if taken else subject


def _with_variants(subject: Subject) -> Subject:
    """The subject with a second expression, whose instances have another context, or attributes that should be context:
    numbers and texts that its constructor has defaults for take other values. A class that forgets its context often gives
    the default back.
    """
    factory = eval(subject.make.partition("(")[0], dict(subject.namespace))
    given = [
        f"{p.name}={_another(p.default)!r}"
        for p in parameters_of(factory)[subject.arity :]
        if type(p.default) in (int, float, bool, str) and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    shape = next((shape for shape in _trials(subject) if _takes(subject, shape)), None)
    if not given or shape is None:
        return subject
    made = build(subject, shape)
    plain, kept = made.__tensor_flatten__()[1], kept_arguments(made)
    found: list[str] = []
    for text in given:
        make = f"{subject.make[:-1]}, {', '.join([*found, text])})"
        try:
            other = build(subject, shape, make=make)
            differs = bool(other.__tensor_flatten__()[1] != plain) or kept_arguments(other) != kept
        except Exception:  # a value that the class does not take, or a context that cannot be compared
            continue
        if differs:
            found.append(text)
    variants = (f"{subject.make[:-1]}, {', '.join(found)})",) if found else ()
    return replace(subject, variants=variants)


def _another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + "_" if isinstance(value, str) else value * 2 + 1


def _with_projection(subject: Subject) -> Subject:
    """The subject with the first projection to dense that the class itself defines and that works."""
    own = [c for c in subject.cls.__mro__ if c not in torch.Tensor.__mro__]
    for name in _PROJECTIONS:
        if not any(name in vars(c) for c in own):
            continue
        for made in instances(subject):
            try:
                dense = getattr(made, name)()
            except Exception:
                continue
            if type(dense) is torch.Tensor and dense.shape == made.shape:
                return replace(subject, dense=f"{{0}}.{name}()")
    return subject


def _with_tolerance(subject: Subject) -> Subject:
    """The subject with a coarse tolerance if the class rounds, as quantised ones do."""
    error = _rounding(subject)
    if error < 2e-5:
        return subject
    tolerance = min(_COARSE if error < 0.05 else _VERY_COARSE, round(64 * error, 3))
    note = (
        f"{subject.cls.__qualname__} rounds (by {error:.2%} of the largest number), so numbers are compared with "
        f"rtol=atol={tolerance}"
    )
    return replace(subject, tolerance=(tolerance, tolerance), notes=(*subject.notes, note))


def _rounding(subject: Subject) -> float:
    """By how much of the largest number the class rounds; 0.0 where that cannot be asked."""
    if subject.dense is None or subject.arity != 1 or not subject.floating:
        return 0.0
    dtype = max(subject.floating, key=lambda d: (d is torch.float32, torch.finfo(d).bits))

    def dense_of(dense: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)  # stochastic rounding
        made = eval(subject.make.format("_dense"), {**subject.namespace, "_dense": dense.to(dtype)})
        value: torch.Tensor = _project(subject, made)
        return value.detach().double()

    for shape in sorted(_trials(subject), key=lambda shape: (shape != (32, 32), -math.prod(shape))):
        try:
            return rounding_of(dense_of, shape, torch.finfo(dtype).eps)
        except Exception:  # sizes that the class does not have
            continue
    return 0.0


def rounding_of(dense_of: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...], eps: float) -> float:
    """How far rounding moves a number, over the largest one; 0.0 for a class that does not round.

    That the dense value of a fresh instance is not what it was made of proves nothing: a mask, an added low-rank product or
    a scale do that too, and are exact. Rounding shows in steps: the dense value *stays* where the number is moved by very
    little. So numbers are moved by very little, and those that stay are counted.

    Args:
        dense_of: the dense value of an instance that is made of a dense tensor.
        eps: distance of 1.0 from the next larger number of their dtype.
    """
    place = torch.zeros(shape, dtype=torch.int64)
    for dim, n in enumerate(shape):
        place += torch.arange(n).reshape(-1, *[1] * (len(shape) - dim - 1))
    free = place % 2 == 1  # the numbers that are moved; the others keep the scale of each row, column and block of four
    numbers = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2.4 - 1.2
    numbers = torch.where(free, numbers, torch.where(place % 4 == 0, 1.7, -1.7))
    was, is_now = (dense_of(torch.where(free, numbers * (1 + d), numbers)) for d in (0.0, max(2**-13, eps)))
    told = free & (was != was.flatten().mode().values)  # others may be masked or pruned
    if not told.any() or (was == is_now)[told].sum() * 2 <= told.sum():
        return 0.0
    return float(((was - numbers)[told]).abs().max() / was.abs().max().clamp(min=1e-30))
