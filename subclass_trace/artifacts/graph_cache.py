"""``cache="graph"``: each region is traced, and a partition is found by the graph that was traced.

So nothing can be stale: what is found is nodes of that graph by their numbers, and is checked
against it (`partition.as_data`). Kernels are found by the back end, as after any trace: inductor
knows a graph by a key of its own.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Collection, Iterator
from typing import Any

from ..capture.tape import TracedBackward
from ..data.describe import versions
from ..errors import ArtifactError, DescriptionError
from ..options import Options
from ..partition.as_data import known_nodes, partition_data, partition_of, rows_of
from ..partition.interface import BY_NAME, Partitioned, Partitioner, partition
from ..partition.min_cut import MinCut
from ..stages import stage
from ..torch_api.partition import config_text
from .cache import directory_path, opened, warn_once
from .container import pack, unpack
from .directory import Directory
from .identity import package_digest
from .source import Source


class GraphCache(Source):
    """Of one region."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._found = self._kept = 0
        self._why: list[str] = []

    def candidates(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """None: a call is traced."""
        return iter(())

    def made(self, describe: Any) -> None:
        """What there is to keep is kept by now."""

    def explain(self) -> str:
        """How often it was of use, and why not."""
        why = "".join(f"\n  {reason}" for reason in self._why[-8:])
        told = f"{self._found} partitions were found, {self._kept} were kept"
        return f"cache of graphs in {directory_path()}: {told}{why}"

    def partition(
        self, traced: TracedBackward, *, partitioner: Partitioner, **given: Any
    ) -> Partitioned:
        """`partition.interface.partition`, or what it has given for an equal graph."""
        if (directory := opened(directory_path())) is None:
            return partition(traced, partitioner=partitioner, **given)
        with stage("partition"):
            key = self._key(traced, partitioner, given)
            found = None if key is None else self._find(directory, key, traced, given["written"])
        if found is not None:
            return found
        known = known_nodes(traced.joint)
        parts = partition(traced, partitioner=partitioner, **given)
        if key is not None:
            self._keep(directory, key, partition_data(parts, known), len(known))
        return parts

    def _key(self, traced: TracedBackward, partitioner: Partitioner, given: Any) -> str | None:
        """All that decides the partition."""
        ours = isinstance(partitioner, MinCut)
        name = next((name for name, known in BY_NAME.items() if known is partitioner), None)
        if not ours and name is None:
            self._why.append("nothing is kept: the code of a partitioner is not compared")
            return None
        how = repr(partitioner) if ours else f"{name} {config_text()}"
        rest = [versions(), package_digest(), self._options.of_a_trace(), how]
        facts = {name: _sorted(value) for name, value in given.items()}
        text = json.dumps([*rest, facts, rows_of(traced)])
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    def _find(
        self, directory: Directory, key: str, traced: TracedBackward, written: Collection[str]
    ) -> Partitioned | None:
        for name, *_ in directory.entries(key):
            try:
                header, (data,) = unpack(directory.read(name) or b"")
                if header.get("versions") != versions():
                    raise ArtifactError("made by other versions", path="versions")
                found = partition_of(data.get("partition"), traced, written)
            except (ArtifactError, DescriptionError, ValueError) as error:
                directory.remove(name)
                self._why.append(f"{name[41:]}: {str(error).partition(chr(10))[0]}")
                continue
            directory.used(name)
            self._found += 1
            return found
        return None

    def _keep(self, directory: Directory, key: str, data: Any, nodes: int) -> None:
        if data is None:
            self._why.append("not kept: the partitioner has made nodes of its own")
            return
        header = {"function": f"partition of {nodes:,} nodes", "versions": versions()}
        held = pack(header, [{"constants": {}, "partition": data}])
        try:
            directory.write(f"{key}-{hashlib.sha256(held).hexdigest()[:16]}.stc", held)
            self._kept += 1
        except OSError as error:
            warn_once(directory.path, error)


def _sorted(value: Any) -> Any:
    return value if isinstance(value, int) else sorted(value)


#: a region has one
_of: weakref.WeakKeyDictionary[Options, GraphCache] = weakref.WeakKeyDictionary()


def graph_cache_of(options: Options) -> GraphCache:
    """That of the region with these options."""
    if (found := _of.get(options)) is None:
        found = _of[options] = GraphCache(options)
    return found
