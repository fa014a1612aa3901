"""From what the user names to a `Subject`: given, registered, or derived by trying constructors."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import torch

from ..errors import OptionError, ProtocolError
from ..subclass.protocol import why_not_traceable
from .building import completed, instances, why_not_built
from .subject import Options, Subject, subject_of

Target = type | str | Subject | Callable[..., torch.Tensor]

#: how to build instances of a class, as its author has said
REGISTERED: dict[type, dict[str, Any]] = {}

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


def load_target(name: str) -> Any:
    """The object that ``pkg.mod:Name`` names.

    Raises:
        OptionError: the module or the name does not exist, or importing it fails.
    """
    module, _, path = name.partition(":")
    if ":" not in name:
        module, _, path = name.rpartition(".")
    if not module or not path:
        raise OptionError(f"{name!r} names no class", expected="package.module:Class")
    try:
        value: Any = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
    except Exception as error:  # importing runs the module
        got = f"{type(error).__name__}: {error}"
        raise OptionError(
            f"cannot find {name!r}", expected="package.module:Class", got=got
        ) from error
    return value


def resolve(target: Target, **options: Any) -> Subject:
    """The subject that a class, a factory, the name of one, or a subject stands for.

    Args:
        options: fields of `subject.Options`; what is not given is looked up or derived.

    Raises:
        OptionError: there is no way to build an instance; the message says how to give one.
        ProtocolError: the class is no traceable wrapper subclass.
    """
    found = load_target(target) if isinstance(target, str) else target
    if isinstance(found, Subject):
        return found
    if isinstance(found, torch.Tensor):
        name = type(found).__qualname__
        raise OptionError(f"an instance of {name} is no target", fix=f"hand in the class: {name}")
    if not callable(found):
        raise OptionError(
            "there is nothing to check",
            expected="a wrapper class, or a function of dense tensors that makes one",
            got=f"{found!r}"[:80],
        )
    options = {k: v for k, v in options.items() if v is not None}
    check_options(options)
    if not isinstance(found, type):
        return _from_factory(found, options)
    why = why_not_traceable(found)
    if why is not None:
        raise ProtocolError(
            f"{found.__qualname__} is no traceable wrapper subclass: {why}", path=found.__qualname__
        )
    options = {**REGISTERED.get(found, {}), **options}
    derived = "factory" not in options
    if derived:
        options["factory"] = _derive(found, options)
    return completed(replace(subject_of(found, **options), derived=derived), options)


_OPTIONS = tuple(f.name for f in fields(Options))
_OF_CHECK = ("rules", "skip", "profile", "max_examples")


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse names that are no fields of `subject.Options`.

    Raises:
        OptionError: there is one.
    """
    for name in options:
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, 1)
            fix = f"did you mean {near[0]}=?" if near else None
            raise OptionError(
                f"no option is called {name!r}", expected=", ".join(_OPTIONS + _OF_CHECK), fix=fix
            )


def _from_factory(factory: Callable[..., torch.Tensor], options: dict[str, Any]) -> Subject:
    if "factory" in options:
        name = getattr(factory, "__qualname__", factory)
        raise OptionError(
            f"{name} is a function, which makes the instances already, and factory= names "
            "another way",
            expected="one of the two",
            fix="name the class as the target, or leave factory= (--factory) out",
        )
    probe = subject_of(torch.Tensor, factory, **options)
    made = next((x for x in instances(probe) if why_not_traceable(x) is None), None)
    if made is None:
        raise OptionError(
            f"{getattr(factory, '__qualname__', factory)} gave no wrapper",
            expected="a function of dense tensors that returns an instance of a wrapper subclass",
            got=why_not_built(probe),
            fix="give sizes= and dtypes= (--sizes, --dtypes) that it accepts",
        )
    return completed(replace(probe, cls=type(made)), options)


def _derive(cls: type, options: dict[str, Any]) -> str:
    said = None
    for make in _candidates(cls):
        try:
            trial = subject_of(cls, make, **options)
        except OptionError:
            raise
        except Exception:  # a set-up that does not run
            continue
        if any(isinstance(made, cls) for made in instances(trial)):
            return make
        said = said or f"{trial.make}: {why_not_built(trial)}"
    raise OptionError(
        f"cannot see how to build a {cls.__qualname__}",
        expected="a constructor that takes one to three dense tensors of one shape, or "
        "from_dense, from_hp, from_float",
        got=said,
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
