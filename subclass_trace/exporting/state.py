"""The state of a module as dense tensors: names that a person knows, tied weights and shared inner
tensors once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from ..errors import ExportError
from ..subclass.flatten import flatten
from ..subclass.paths import Path
from ..subclass.spec import Spec, leaf_paths
from ..subclass.visit import rebuild

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class StateEntry:
    """A parameter or buffer under its first name.

    Attributes:
        spec: how it is made of dense tensors; ``leaves``: their names.
        kind: "parameter", "buffer", or "non-persistent".
    """

    name: str
    spec: Spec
    leaves: tuple[str, ...]
    kind: str
    value: Tensor


@dataclass(frozen=True, eq=False)
class FlatState:
    """The state of a module, taken apart.

    Attributes:
        entries: name -> entry, of each distinct parameter and buffer.
        tied: other names of these -> the first one.
        shared: name of a dense tensor -> an earlier one that is the same object (one scale of two
            weights).
        tensors: name -> the dense tensor, each once.
    """

    entries: dict[str, StateEntry]
    tied: dict[str, str]
    shared: dict[str, str]
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, module: torch.nn.Module) -> FlatState:
        """That of a module."""
        entries, tied, shared = dict[str, StateEntry](), dict[str, str](), dict[str, str]()
        tensors, first, known = dict[str, Tensor](), dict[int, str](), dict[int, str]()
        for name, value, kind in _state_of(module):
            if id(value) in first:
                tied[name] = first[id(value)]
                continue
            first[id(value)] = name
            leaves, spec = flatten(value, Path(name))
            names = tuple(leaf_paths(spec, name))
            entries[name] = StateEntry(name, spec, names, kind, value)
            for leaf_name, leaf in zip(names, leaves, strict=True):
                if (earlier := known.setdefault(id(leaf), leaf_name)) != leaf_name:
                    shared[leaf_name] = earlier
                else:
                    tensors[leaf_name] = leaf
        return cls(entries, tied, shared, tensors)

    def with_any_of(self, ids: set[int]) -> FlatState:
        """The parameters and buffers that one of these dense tensors is in."""

        def has(entry: StateEntry) -> bool:
            return any(id(self.tensors[self.shared.get(n, n)]) in ids for n in entry.leaves)

        entries = {name: e for name, e in self.entries.items() if has(e)}
        names = {self.shared.get(n, n) for e in entries.values() for n in e.leaves}
        return FlatState(
            entries,
            {alias: n for alias, n in self.tied.items() if n in entries},
            {alias: n for alias, n in self.shared.items() if n in names},
            {n: t for n, t in self.tensors.items() if n in names},
        )

    def flatten(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A state dict of the module as dense tensors, each once.

        Raises:
            ExportError: a name is missing, or a value is of another kind.
        """
        found: dict[str, Tensor] = {}
        for entry in self._persistent():
            if entry.name not in state_dict:
                raise ExportError(
                    "the state dict lacks a name",
                    path=entry.name,
                    expected=f"{len(self.entries)} names",
                )
            leaves, _ = flatten(state_dict[entry.name], Path(entry.name))
            if len(leaves) != len(entry.leaves):
                got = (
                    f"{type(state_dict[entry.name]).__qualname__} with {len(leaves)} dense tensors"
                )
                expected = f"one with {', '.join(entry.leaves)}"
                raise ExportError(
                    "a value is of another kind", path=entry.name, expected=expected, got=got
                )
            found |= {
                n: t.detach()
                for n, t in zip(entry.leaves, leaves, strict=True)
                if n not in self.shared
            }
        return found

    def unflatten(self, flat: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inverse: a state dict of the module, tied names of one object.

        Raises:
            ExportError: a name is missing, or a tensor has another shape or dtype.
        """
        _check(self, flat)
        found: dict[str, Tensor] = {}
        for entry in self._persistent():
            leaves = [flat[self.shared.get(name, name)] for name in entry.leaves]
            with torch.no_grad():
                value = rebuild(entry.spec, iter(leaves))
            found[entry.name] = value.detach() if value.requires_grad else value
        return found | {alias: found[name] for alias, name in self.tied.items() if name in found}

    def _persistent(self) -> Iterator[StateEntry]:
        return (entry for entry in self.entries.values() if entry.kind != "non-persistent")


def load_flat_state(module: torch.nn.Module, flat: Mapping[str, Tensor]) -> None:
    """Write a flat state (`Exported.flatten_state_dict`, a file of safetensors) into the dense
    tensors of a module, in place: tied weights stay tied, shared inner tensors shared.

    Raises:
        ExportError: a name is missing or unknown, or a tensor has another shape or dtype; nothing
            is written then.
    """
    state = FlatState.of(module)
    _check(state, flat)
    with torch.no_grad():
        for name, tensor in state.tensors.items():
            if name in flat:
                tensor.copy_(flat[name])


def _check(state: FlatState, flat: Mapping[str, Tensor]) -> None:
    needed = {
        n: t
        for e in state._persistent()
        for n in e.leaves
        if (t := state.tensors.get(n)) is not None
    }
    if missing := [name for name in needed if name not in flat]:
        raise ExportError(
            "the flat state lacks names",
            path=missing[0],
            got=f"{len(missing)} missing: {missing[:5]}",
        )
    if unknown := [name for name in flat if name not in needed]:
        raise ExportError(
            "the flat state has unknown names",
            path=unknown[0],
            got=f"{len(unknown)}: {unknown[:5]}",
        )
    for name, known in needed.items():
        given = flat[name]
        if (given.shape, given.dtype) != (known.shape, known.dtype):
            expected = f"{known.dtype} {[*known.shape]}"
            raise ExportError(
                "a tensor is another one",
                path=name,
                expected=expected,
                got=f"{given.dtype} {[*given.shape]}",
            )


def _state_of(module: torch.nn.Module) -> Iterator[tuple[str, Tensor, str]]:
    persistent = set(module.state_dict(keep_vars=True))
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield name, parameter, "parameter"
    for name, buffer in module.named_buffers(remove_duplicate=False):
        yield name, buffer, "buffer" if name in persistent else "non-persistent"
