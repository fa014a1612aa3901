"""``warnings.warn`` in a region: shown, raised and silent as in eager mode, in each call, from the user's line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import subclass_trace as st

Function = Callable[..., torch.Tensor]


def _inner(x: torch.Tensor, level: int) -> torch.Tensor:
    warnings.warn(f"of {x.shape[0]} rows", RuntimeWarning, stacklevel=level)
    return x + 1


def warns(x: torch.Tensor, level: int = 1) -> torch.Tensor:
    y = _inner(x, level)
    try:
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    except DeprecationWarning:
        return y * 5
    return y * 2


def outcomes(function: Function) -> list[Any]:
    """Results, and what was shown, under filters that change between the calls."""
    found: list[Any] = []
    for level in (1, 2, 3):
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            found += [function(torch.ones(n), level).tolist() for n in (2, 2, 3)]
        found += [(str(w.message), w.category, w.filename, w.lineno) for w in shown]
    for action, category in (("ignore", Warning), ("error", DeprecationWarning), ("default", Warning)):
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("ignore")
            warnings.simplefilter(action, category)  # type: ignore[arg-type]
            found += [function(torch.ones(2)).tolist() for _ in range(3)]
        found.append([(str(w.message), w.lineno) for w in shown])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            function(torch.ones(2))
        except RuntimeWarning as error:
            found.append(repr(error))
    return found


def test_each_call_warns_as_eager_mode_does() -> None:
    region = st.compile(warns)
    expected = outcomes(warns)
    globals().pop("__warningregistry__", None)
    assert outcomes(region) == expected
    assert expected[-1] == "RuntimeWarning('of 2 rows')" and len(expected) > 25
    assert "served by our trace" in region.explain()


def test_a_warning_is_data(tmp_path: Path) -> None:
    region, x = st.compile(warns), torch.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        region(x)
        assert region.save(tmp_path / "region.st", x) == ()
        served = st.load(tmp_path / "region.st", warns)
    with torch.compiler.set_stance("fail_on_recompile"), warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert served(x).tolist() == [4, 4]
    assert [str(w.message) for w in shown] == ["of 2 rows", "old"]
