"""Has anybody changed what the contexts of wrappers hold, while code ran that may not?

A traced wrapper has copies of what can be changed in place: of a list that a module logs into as well, or of a configuration
of both. A region that changes such an object by its other name would read the old one through the wrapper; and a change that
a custom backward makes would be made to the copy.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from .. import _torch
from ..errors import UnsupportedError
from ..subclass.changeable import may_change, own_contexts
from ..subclass.context import snapshot
from ..subclass.kept import kept
from ..subclass.kept_objects import remembers_more
from ..subclass.noting import unnoted
from ..subclass.paths import Path
from ..subclass.visit import inner_values


class ChangedContexts:
    """The contexts of some values, and of what is inside of them, as they are when this is made.

    Args:
        objects: look into objects of the user's, too, which traced wrappers have themselves.
    """

    def __init__(self, values: Iterable[tuple[Path, Any]], objects: bool = False) -> None:
        self._rows: list[tuple[Path, Callable[[], Any], Any]] = []
        with unnoted(), _torch.plain_dispatch():  # the trace sees none of it
            for path, value in values:
                for names, wrapper in own_contexts(value):
                    context = inner_values(wrapper)[2]
                    where = _inside(path, names)
                    if may_change(context, objects):
                        before = kept(context, where) if objects else snapshot(context)
                        self._rows.append((where, weakref.ref(wrapper), before))

    def check(self, what: str, fix: str) -> None:
        """Call it when the code has run.

        Raises:
            UnsupportedError: a context holds something else now; but objects may remember more.
        """
        with unnoted(), _torch.plain_dispatch():
            for path, reference, before in self._rows:
                wrapper = reference()
                now = before if wrapper is None else inner_values(wrapper)[2]
                if not remembers_more(before, now):
                    raise UnsupportedError(
                        what, path=path, expected="the context as it was before", got=f"{now!r:.200}", fix=fix
                    )


def _inside(path: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        path = path.attr(name)
    return path
