"""Trying a factory out: does it give instances, of which sizes and dtypes, and what is not said
about them.

`completed` takes a `Subject` as the user has described it and adds what he left out: sizes and
dtypes that the factory takes, the projection to dense, and a tolerance.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..errors import OptionError
from ..subclass.protocol import why_not_traceable
from .operands import SMALL, all_shapes
from .subject import Subject

#: names of methods that give the dense value
_PROJECTIONS = ("to_dense", "dequantize", "full_tensor", "dense")
_TRIALS = ((2, 3), (2,), (4, 4), (32, 32))
#: sizes to try with a class that takes none of the small ones
_LARGE = (
    (32, 32),
    (32, 64),
    (64, 32),
    (64, 64),
    (16, 16),
    (16, 32),
    (128, 128),
    (128, 256),
    (64,),
    (128,),
    (256,),
)
#: rtol and atol for classes that round; the second for those with very few bits
_COARSE, _VERY_COARSE = 0.2, 0.5


def completed(subject: Subject, options: Mapping[str, Any]) -> Subject:
    """The subject with all that ``options`` do not say.

    Raises:
        OptionError: the factory gives nothing, or something else than the class; or the projection
            does not work.
    """
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        if "sizes" not in options:
            subject = _with_sizes(subject)
        if "dtypes" not in options:
            subject = _with_dtypes(subject)
        _check_factory(subject)
        _check_mask(subject)
        if "to_dense" in options:
            _check_projection(subject)
        else:
            subject = _with_projection(subject)
        if "sizes" not in options:
            subject = _with_meaning(subject)
        return subject if "tolerance" in options else _with_tolerance(subject)


# ---- one instance
def build(subject: Subject, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Any:
    """What the factory gives for dense tensors of this shape. Raises what it raises."""
    dtype = subject.dtypes[0] if dtype is None else dtype
    dense = {f"_dense{k}": (torch.ones(shape) * (k + 1)).to(dtype) for k in range(subject.arity)}
    # the gaps hold names, so that whatever the author writes behind a gap means the tensor
    made = eval(subject.make.format(*dense), {**subject.namespace, **dense})
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


# ---- what the user says
def _check_factory(subject: Subject) -> None:
    found = next(instances(subject), None)
    cls = subject.cls
    if isinstance(found, cls):
        return
    trials = _trials(subject)
    raise OptionError(
        f"there is no way to build an instance: {subject.make} gives no {cls.__qualname__}",
        expected=f"a {cls.__qualname__} for dense tensors of some size; {len(trials)} were "
        f"tried, such as {trials[0]}",
        got=why_not_built(subject) if found is None else f"a {type(found).__qualname__}",
        fix="give a factory= (--factory) such as "
        f"'{cls.__qualname__}({{0}})', of names of {cls.__module__} and torch; and sizes= and "
        "dtypes= (--sizes, "
        "--dtypes) that it takes",
    )


def _check_projection(subject: Subject) -> None:
    said = _never_gives(subject, subject.dense, lambda made, t: why_not_traceable(t) is not None)
    if said is not None:
        raise OptionError(
            f"the projection {subject.dense} gives no dense tensor",
            expected=f"a dense tensor for a {subject.cls.__qualname__}",
            got=said,
            fix="name an attribute or a method of the class: to_dense= (--to-dense "
            "'{0}.dequantize()')",
        )


def _check_mask(subject: Subject) -> None:
    said = _never_gives(
        subject, subject.valid, lambda made, t: t.dtype is torch.bool and t.shape == made.shape
    )
    if said is not None:
        raise OptionError(
            f"{subject.valid} of valid= gives no mask",
            expected=f"a bool tensor of the sizes of a {subject.cls.__qualname__}",
            got=said,
        )


def _never_gives(
    subject: Subject, text: str | None, right: Callable[[Any, torch.Tensor], bool]
) -> str | None:
    """What an expression gives for the first instance, if it is right for none of them."""
    said = None
    for made in instances(subject) if text is not None else ():
        try:
            found = eval(str(text).format("_made"), {**subject.namespace, "_made": made})
        except Exception as error:  # perhaps for these sizes only
            said = said or f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        if isinstance(found, torch.Tensor) and right(made, found):
            return None
        of = (type(found).__qualname__, getattr(found, "dtype", ""), getattr(found, "shape", ""))
        said = said or "a {} {} {}".format(*of).rstrip()
    return said


def _project(subject: Subject, made: Any) -> Any:
    assert subject.dense is not None
    return eval(subject.dense.format("_made"), {**subject.namespace, "_made": made})


# ---- what he does not say
def _with_sizes(subject: Subject) -> Subject:
    """The subject with the sizes that its factory takes, if it refuses some: a draw that it refuses
    costs time."""
    dtype = next(
        (d for d in subject.dtypes if any(_takes(subject, shape, d) for shape in _trials(subject))),
        None,
    )
    small = [shape for shape in SMALL if _takes(subject, shape, dtype)]
    if len(small) == len(SMALL):
        return subject
    taken = tuple(shape for shape in all_shapes() if _takes(subject, shape, dtype))
    if any(map(math.prod, taken)):  # (blocks of 32 rows can be made of no rows: that shows nothing)
        return replace(subject, sizes=taken)
    large = tuple(shape for shape in _LARGE if _takes(subject, shape, dtype))[:4]
    if not large:
        return subject
    note = (
        f"{subject.cls.__qualname__} refuses small tensors, so it is made of "
        f"{', '.join(map(str, large))}"
    )
    return replace(subject, sizes=large, notes=(*subject.notes, note))


def _with_dtypes(subject: Subject) -> Subject:
    """The subject with the dtypes that its factory takes."""
    taken = tuple(
        d for d in subject.dtypes if any(_takes(subject, shape, d) for shape in _trials(subject))
    )
    return replace(subject, dtypes=taken) if taken else subject


def _with_projection(subject: Subject) -> Subject:
    """The subject with the first projection to dense that the class itself defines and that
    works."""
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


def _with_meaning(subject: Subject) -> Subject:
    """Without the numbers of dimensions that the factory takes by chance: no instance has a dense
    value of its sizes."""

    def fits(shape: tuple[int, ...]) -> bool:
        try:
            made = build(subject, shape)
            return bool(_project(subject, made).shape == made.shape)
        except Exception:
            return False

    sizes = subject.sizes or tuple(all_shapes())
    dims = {len(shape) for shape in sizes} if subject.dense else set[int]()
    right = {d for d in dims if any(fits(s) for s in [s for s in sizes if len(s) == d][:8])}
    kept = tuple(shape for shape in sizes if len(shape) in right)
    return replace(subject, sizes=kept) if kept and right != dims else subject


def _with_tolerance(subject: Subject) -> Subject:
    """The subject with a coarse tolerance if the class rounds, as quantised ones do."""
    error = _rounding(subject)
    if error < 5e-7:
        return subject
    tolerance = min(_COARSE if error < 0.05 else _VERY_COARSE, float(f"{64 * error:.1g}"))
    note = (
        f"{subject.cls.__qualname__} rounds (by {error:.2%} of the largest number), so numbers "
        "are compared with "
        f"rtol=atol={tolerance}"
    )
    return replace(subject, tolerance=(tolerance, tolerance), notes=(*subject.notes, note))


def _rounding(subject: Subject) -> float:
    """By how much of the largest number a fresh instance differs from what it was made of, where it
    says that it gives that
    back: another projection may give another value by design, and so does a method that is off by
    more than a half.
    """
    if (
        subject.dense is None
        or not re.search(rf"\b({'|'.join(_PROJECTIONS)})\b", subject.dense)
        or subject.arity != 1
        or not subject.floating
    ):
        return 0.0
    dtype = max(subject.floating, key=lambda d: (d is torch.float32, torch.finfo(d).bits))
    for shape in sorted(_trials(subject), key=lambda shape: (shape != (32, 32), -math.prod(shape))):
        numbers = torch.rand(shape, generator=torch.Generator().manual_seed(0)).sub_(0.5).to(dtype)
        try:
            made = eval(subject.make.format("_dense"), {**subject.namespace, "_dense": numbers})
            dense, exact = _project(subject, made).detach().double(), numbers.double()
            factor = (dense * exact).sum() / (
                exact * exact
            ).sum()  # a scale of its own is no rounding
            error = (dense - factor * exact).abs().max() / dense.abs().max()
        except Exception:  # sizes that the class does not have
            continue
        return float(error) if float(error) < 0.5 else 0.0
    return 0.0
