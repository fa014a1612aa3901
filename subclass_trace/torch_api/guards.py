"""Versions of dicts, as torch's C++ guards know them (private API of Dynamo, which is not imported
for it).

From Python 3.12 on torch keeps versions by dict watchers. From 3.13 on an attribute that is set on
an object whose values lie inline moves no version of its dict, unless the dict owns its table
(`own_table`). `versions_see_writes` tells at start-up whether versions can be trusted here.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

from torch._C._dynamo.guards import dict_version as dict_version


def own_table(held: dict[Any, Any]) -> None:
    """Make the dict of an instance report each write: one that had a key which is no text keeps its
    own table."""
    if sys.version_info >= (3, 13):
        held[()] = None
        del held[()]


@functools.lru_cache(None)
def versions_see_writes() -> bool:
    """Does the version of a dict move with each kind of write, on this Python and torch?"""

    class Probe:
        pass

    def moves(held: dict[str, Any], write: Callable[[], Any]) -> bool:
        before = dict_version(held)
        write()
        return bool(dict_version(held) != before)

    probe, space = Probe(), {"a": 1}
    probe.a = 1  # type: ignore[attr-defined]
    own_table(vars(probe))
    of_class: Any = next(d for d in gc.get_referents(vars(Probe)) if type(d) is dict)
    return (
        moves(vars(probe), lambda: setattr(probe, "a", 2))
        and moves(vars(probe), lambda: setattr(probe, "b", 2))
        and moves(vars(probe), lambda: delattr(probe, "b"))
        and moves(space, lambda: space.__setitem__("a", 2))
        and moves(space, lambda: space.pop("a"))
        and moves(of_class, lambda: setattr(Probe, "k", 1))
    )
