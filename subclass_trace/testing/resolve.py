"""From what the user names to a `Subject`: given, registered, known, or derived by trying constructors."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as s

from ..errors import OptionError, ProtocolError
from ..subclass.protocol import why_not_traceable
from . import strategies
from .known import KNOWN
from .subject import Subject, subject_of

Target = type | str | Subject | Callable[..., torch.Tensor]

_REGISTERED: dict[type, dict[str, Any]] = {}

#: constructors by convention, tried in this order with dense tensors of one shape
_CONSTRUCTORS = (
    "{c}.from_dense({{0}})",
    "{c}.from_hp({{0}})",
    "{c}.from_float({{0}})",
    "{c}.quantize({{0}})",
    "{c}({{0}})",
    "{c}({{0}}, {{1}})",
    "{c}({{0}}, {{1}}, {{2}})",
)
_PROJECTIONS = ("to_dense", "dequantize", "full_tensor", "dense")
_TRIALS = ((2, 3), (2,), (4, 4), (32, 32))
#: sizes to try with a class that takes none of the small ones
_LARGE = ((32, 32), (32, 64), (64, 32), (64, 64), (16, 16), (16, 32), (128, 128), (128, 256), (64,), (128,), (256,))
#: rtol and atol for classes that round; the second for those with very few bits
_COARSE, _VERY_COARSE = 0.2, 0.5


def register_strategy(
    cls: type, factory: str | Callable[..., torch.Tensor] | s.SearchStrategy[torch.Tensor], **options: Any
) -> None:
    """Tell the kit how to build instances of a class.

    Args:
        factory: a callable or expression that makes an instance from dense tensors (best: counterexamples shrink and
            print well), or a hypothesis strategy for instances.
        options: the other arguments of `subject.subject_of`: ``to_dense``, ``sizes``, ``dtypes``, ``tolerance``.
    """
    key = "strategy" if isinstance(factory, s.SearchStrategy) else "factory"
    _REGISTERED[cls] = {key: factory, **options}


def load_target(name: str) -> Any:
    """The object that ``pkg.mod:Name`` names.

    Raises:
        OptionError: the module or the name does not exist, or importing it fails.
    """
    module, _, path = name.partition(":")
    if not path:
        module, _, path = name.rpartition(".")
    try:
        value: Any = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
    except Exception as error:  # importing runs the module
        raise OptionError(
            f"cannot find {name!r}", expected="package.module:Class", got=f"{type(error).__name__}: {error}"
        ) from error
    return value


def resolve(target: Target, **options: Any) -> Subject:
    """The subject that a class, a factory, the name of one, or a subject stands for.

    Args:
        options: arguments of `subject.subject_of`; what is not given is looked up or derived.

    Raises:
        OptionError: there is no way to build an instance; the message says how to give one.
        ProtocolError: the class is no traceable wrapper subclass.
    """
    found = load_target(target) if isinstance(target, str) else target
    if isinstance(found, Subject):
        return found
    options = {k: v for k, v in options.items() if v is not None}
    if not isinstance(found, type):
        return _from_factory(found, options)
    why = why_not_traceable(found)
    if why is not None:
        raise ProtocolError(f"{found.__qualname__} is no traceable wrapper subclass: {why}", path=found.__qualname__)
    known = _REGISTERED.get(found) or _known(found) or {}
    options = {**known, **options}
    if "factory" not in options and "strategy" not in options:
        options["factory"] = _derive(found, options)
    return _completed(subject_of(found, options.pop("factory", None), **options), options)


def _known(cls: type) -> dict[str, Any] | None:
    return KNOWN.get(f"{cls.__module__}.{cls.__qualname__}") or next(
        (v for k, v in KNOWN.items() if k.rpartition(".")[2] == cls.__qualname__ and _is(k, cls)), None
    )


def _is(name: str, cls: type) -> bool:
    try:
        return load_target(name) is cls
    except OptionError:
        return False


def _from_factory(factory: Callable[..., torch.Tensor], options: dict[str, Any]) -> Subject:
    probe = subject_of(torch.Tensor, factory, **options)
    for shape in _TRIALS:
        made = _build(probe, shape)
        if isinstance(made, torch.Tensor) and why_not_traceable(made) is None:
            return _completed(subject_of(type(made), factory, **options), options)
    raise OptionError(
        f"{factory!r} gave no wrapper for dense tensors of the sizes {', '.join(map(str, _TRIALS))}",
        expected="a function of dense tensors that returns an instance of a wrapper subclass",
        fix="give sizes= and dtypes= that it accepts",
    )


def _derive(cls: type, options: dict[str, Any]) -> str:
    for make in _candidates(cls):
        try:
            trial = subject_of(cls, make, **{k: v for k, v in options.items() if k != "factory"})
        except Exception:  # a set-up that does not run
            continue
        if any(isinstance(_build(trial, shape), cls) for shape in _TRIALS):
            return make
    raise OptionError(
        f"cannot see how to build a {cls.__qualname__}",
        expected="a constructor that takes one to three dense tensors of one shape, or from_dense, from_hp, from_float",
        fix="give factory=, a function of dense tensors or an expression such as "
        f"'{cls.__qualname__}({{0}}, scale=2.0)', or call subclass_trace.testing.register_strategy",
    )


def _candidates(cls: type) -> Iterator[str]:
    name = cls.__name__ if "<locals>" in cls.__qualname__ else cls.__qualname__
    for pattern in _CONSTRUCTORS:
        make = pattern.format(c=name)
        method = make.split("(")[0].rpartition(".")[2]
        if "." not in make.split("(")[0] or hasattr(cls, method):
            yield make


def _build(subject: Subject, shape: tuple[int, ...]) -> Any:
    names = dict(subject.namespace)
    dense = [f"torch.ones({shape}) * {k + 1}" for k in range(subject.arity)]
    try:
        made = eval(subject.make.format(*dense), names)
        made.__tensor_flatten__()
    except Exception:
        return None
    return made


def _completed(subject: Subject, options: dict[str, Any]) -> Subject:
    """The subject with what was not given: sizes, a projection to dense, a tolerance."""
    if "sizes" not in options and subject.strategy is None:
        subject = _with_sizes(subject)
    if "to_dense" not in options:
        subject = _with_projection(subject)
    return subject if "tolerance" in options else _with_tolerance(subject)


def _with_sizes(subject: Subject) -> Subject:
    """The subject with large sizes, if its factory refuses all small ones."""
    if any(_build(subject, shape) is not None for shape in strategies.SMALL):
        return subject
    large = [shape for shape in _LARGE if _build(subject, shape) is not None][:4]
    if not large:
        return subject  # the rules will say what the factory says
    note = f"{subject.cls.__qualname__} refuses small tensors, so it is made of {', '.join(map(str, large))}"
    return replace(subject, sizes=s.sampled_from(large), notes=(*subject.notes, note))


def _with_tolerance(subject: Subject) -> Subject:
    """The subject with a coarse tolerance if the class rounds, as quantised ones do."""
    error = _rounding(subject)
    if not 1e-4 < error < 0.3:  # exact; or the dense value is another one by design
        return subject
    tolerance = _COARSE if error < 0.05 else _VERY_COARSE
    note = (
        f"{subject.cls.__qualname__} rounds (by {error:.1%} of the largest number), so numbers are compared with "
        f"rtol=atol={tolerance}"
    )
    return replace(subject, tolerance=(tolerance, tolerance), notes=(*subject.notes, note))


def _rounding(subject: Subject) -> float:
    """How far the dense value of a fresh instance is from the tensor that it was made of, over the largest number."""
    errors = [0.0]
    if subject.dense is None or subject.arity != 1 or subject.strategy is not None or not subject.floating:
        return 0.0
    for shape in _TRIALS:
        dense = torch.linspace(-1.3, 1.7, math.prod(shape)).to(subject.floating[0]).reshape(shape)
        try:
            made = eval(subject.make.format("_dense"), {**subject.namespace, "_dense": dense.clone()})
            back = eval(subject.dense.format("_made"), {**subject.namespace, "_made": made})
            errors.append(float((back - dense).abs().max() / dense.abs().max()))
        except Exception:  # sizes that the class does not have
            continue
    return max(errors)


def _with_projection(subject: Subject) -> Subject:
    """The subject with the first projection to dense that the class itself defines and that works."""
    own = [c for c in subject.cls.__mro__ if c not in torch.Tensor.__mro__]
    for name in _PROJECTIONS:
        if not any(name in vars(c) for c in own):
            continue
        for shape in _TRIALS:
            made = _build(subject, shape)
            try:
                dense = getattr(made, name)()
            except Exception:
                continue
            if type(dense) is torch.Tensor and dense.shape == made.shape:
                return replace(subject, dense=f"{{0}}.{name}()")
    return subject
