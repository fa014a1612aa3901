"""A dict in a traced wrapper that tells which of its items are read.

Many classes keep a table of their context as it is (``self.meta = context``). Traced wrappers hold a `NotedDict` in its
place: a dict to whoever asks, but that reads of one item, and of the whole, are told. The tracer's own code takes it for a
dict through `ROWS` and `plain`, and tells nobody.

>>> class Keys:
...     def note(self, key):
...         print("reads", key)
>>> table = NotedDict({"bits": 4, "name": "w"}, Keys())
>>> table["bits"] + table.get("none", 1)
reads ('bits',)
reads ('none',)
5
>>> {**table}
reads ('bits',)
reads ('name',)
{'bits': 4, 'name': 'w'}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from .._torch import pytree
from .noting import is_unnoted


class Keys(Protocol):
    """Is told of reads of the items of one dict, and of its copies."""

    def note(self, key: tuple[Any, ...]) -> None:
        """The item ``key[0]`` is read; all of them where ``key`` is empty."""

    def unread(self) -> dict[Any, Any]:
        """What stands for the items that nothing has read."""


class NotedDict(dict[Any, Any]):
    """See the module. What changes it reads all of it; which keys there are is no secret, since guards compare them."""

    __slots__ = ("keys_read",)

    def __new__(cls, rows: Any = (), keys_read: Keys | None = None, **more: Any) -> Any:
        """Who makes another of the class (``type(d)(rows)``) gets a dict."""
        return dict(rows, **more) if keys_read is None else super().__new__(cls)

    def __init__(self, rows: Mapping[Any, Any], keys_read: Keys) -> None:
        super().__init__(rows)
        self.keys_read = keys_read

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return dict

    def __getitem__(self, key: Any) -> Any:
        self.read(key)
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """As of any dict."""
        self.read(key)
        return super().get(key, default)

    def __iter__(self) -> Iterator[Any]:  # so that C code which copies the dict asks for each item
        return super().__iter__()

    def read(self, *key: Any) -> None:
        """One item is read, or all of them."""
        if not is_unnoted():
            self.keys_read.note(key)

    def __copy__(self) -> dict[Any, Any]:
        self.read()
        return dict(dict.items(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.read()
        return dict, (plain(self),)


def _telling(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def telling(self: NotedDict, *args: Any, **kwargs: Any) -> Any:
        for value in (self, *args):
            if type(value) is NotedDict:
                value.read()
        return method(self, *map(plain, args), **kwargs)

    telling.__name__, telling.__doc__ = name, method.__doc__
    return telling


#: what reads more than one item, or changes any
_WHOLE = (
    *("__eq__", "__ne__", "__or__", "__ror__", "__ior__", "__repr__", "__setitem__", "__delitem__"),
    *("clear", "copy", "items", "pop", "popitem", "setdefault", "update", "values"),
)
for _name in _WHOLE:
    setattr(NotedDict, _name, _telling(_name))

#: a dict as a class is given one, and as the tracer gives one
ROWS = (dict, NotedDict)


def plain(value: Any) -> Any:
    """A dict of its own in the place of a `NotedDict`. Nobody is told."""
    return dict(dict.items(value)) if type(value) is NotedDict else value


def like(value: dict[Any, Any], rows: dict[Any, Any]) -> dict[Any, Any]:
    """``rows``, of which reads are told as those of ``value`` are."""
    return NotedDict(rows, value.keys_read) if type(value) is NotedDict else rows


def _flatten(value: NotedDict) -> tuple[list[Any], Any]:
    return list(value.values()), tuple(value)


def _flatten_with_keys(value: NotedDict) -> tuple[list[Any], Any]:
    return [(pytree.MappingKey(k), v) for k, v in value.items()], tuple(value)


pytree.register_pytree_node(  # a dict is no leaf
    NotedDict,
    _flatten,
    lambda children, keys: dict(zip(keys, children, strict=True)),
    flatten_with_keys_fn=_flatten_with_keys,
)
