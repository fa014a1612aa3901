"""A specialization -> its description, and back to the parts of which `bind` makes one."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
import torch.fx as fx

from ..errors import DescriptionError, Reason, SubclassTraceError, Unlike
from ..partition.half import Half
from ..plan import Plan
from ..runtime.backward import Backwards, CompiledBackward
from ..runtime.bind import other_input
from ..runtime.emit import verify_templates
from ..runtime.guards import Ambient
from ..runtime.program import Program
from ..runtime.sizes import hint_of
from ..runtime.specialize import Graphs
from ..state.guards import StateGuards, others_of
from ..state.place import GONE, Place, Roots, above
from ..state.rows import Row
from ..state.values import MISSING
from ..subclass.context import parts_of
from ..subclass.flatten import flatten
from ..subclass.spec import OpaqueSpec, Spec, WrapperSpec
from ..subclass.template import Examples, Verified, template_key
from ..torch_api.dtensor_modes import DTensorModes
from ..torch_api.owners import Owner, owner_of
from ..torch_api.ranks import mesh_data
from .checks import check
from .graphs import GraphReader, GraphWriter, group_arguments
from .objects import fingerprint_of_class, name_of
from .ranks import compare_ranks, ranks_of
from .vocabulary import Gap

#: of what a description says; another one is not read
VERSION = 3


@dataclass(frozen=True)
class Description:
    """What a specialization is, as data.

    Attributes:
        data: what JSON can hold.
        gaps: what could not be written, with its path; a description that has some cannot be bound.
    """

    data: dict[str, Any]
    gaps: tuple[Gap, ...]

    @property
    def rank(self) -> int | None:
        """The rank of which alone it is; None: of each."""
        found: int | None = self.data["ranks"][1]
        return found


@dataclass(frozen=True, eq=False)
class BackwardParts:
    """A backward of a description; see `CompiledBackward`."""

    tangents: tuple[Spec | None, ...]
    tangent_names: tuple[str, ...]
    inputs: tuple[tuple[str, Any], ...]
    grads: tuple[Spec | None, ...]
    passed: tuple[tuple[str, int] | None, ...]
    conditions: tuple[Any, ...]
    autocast: tuple[Any, ...]
    dtensor: DTensorModes | None
    reads: StateGuards | None
    half: Half


@dataclass(frozen=True, eq=False)
class BackwardsParts:
    """The backwards of a description; see `Backwards`. ``trace``: what the forward's trace was
    like."""

    inputs: int
    takes_batches: bool
    output_paths: tuple[str, ...]
    symbols: frozenset[Any]
    trace: str
    compiled: tuple[BackwardParts, ...]


@dataclass(frozen=True, eq=False)
class Parts:
    """What `read` gives: the records of a specialization, for the roots of a call. ``alone``: its
    forward saves nothing."""

    ambient: Ambient
    guards: StateGuards
    plan: Plan
    first: Half
    alone: bool
    backwards: BackwardsParts | None
    templates: Verified
    rank_reads: tuple[str, ...]


def versions() -> list[str]:
    """What a description holds for besides what it says: torch, Python, this package's
    vocabulary."""
    git = getattr(torch.version, "git_version", None) or ""
    return [
        str(torch.__version__),
        git[:12],
        ".".join(map(str, sys.version_info[:3])),
        str(VERSION),
    ]


# ---- writing
def describe(
    ambient: Ambient,
    guards: StateGuards,
    program: Program,
    graphs: Graphs,
    rank_reads: tuple[str, ...],
    options: list[str],
    call: Roots,
) -> Description:
    """The description of a specialization.

    Args:
        rank_reads: what its traces have read of the rank of this process.
        options: what of a region's options decides a trace.
        call: the roots: the function, and the arguments where something among them is found by its
            place.
    """
    w, backwards = _Writer(call, program.plan), program.backwards
    state = w.guards(guards)
    data = {
        "versions": versions(),
        "options": options,
        "ranks": ranks_of(rank_reads),
        "guards": state,
        "ambient": [[f.name, w.value(getattr(ambient, f.name), f.name)] for f in fields(ambient)],
        "plan": w.value(program.plan, "plan"),
        "forward": w.half(graphs.first, "forward"),
        "alone": graphs.second is None,
        "proofs": w.proofs(_halves(program, graphs)) if program.by_eager else [],
        "backwards": None if backwards is None else w.backwards(backwards, graphs),
    }
    for b in () if backwards is None else backwards.compiled:  # else each process does so
        verify_templates(b.grads, Examples(hint_of, None, program.templates))
    data["templates"] = [w.value(pair, "templates") for pair in program.templates.values()]
    data["classes"] = w.classes()
    data["symbols"] = w.symbols
    data["gaps"] = [*map(str, dict.fromkeys(w.gaps))]
    data["constants"] = w.constants
    data["places"] = w.places  # last: all others name them
    return Description(data, tuple(dict.fromkeys(w.gaps)))


def _halves(program: Program, graphs: Graphs) -> Iterator[tuple[Half, bool]]:
    """The programs that run, and whether autograd runs them."""
    yield graphs.first, program.plan.gradients.by_autograd
    for backward in () if program.backwards is None else program.backwards.compiled:
        if not backward.when.create_graph:
            yield half_of(backward), False


def half_of(backward: CompiledBackward) -> Half:
    """The program of a backward."""
    return backward.graph if isinstance(backward.graph, Half) else Half.of_module(backward.graph)


class _Writer(GraphWriter):
    def __init__(self, call: Roots, plan: Plan) -> None:
        super().__init__(call)
        self._classes: dict[type, None] = {}
        # id of a mesh in the context of an input -> it, and where it is
        self._parts: dict[int, tuple[Any, list[Any]]] = {}
        for row in plan.inputs.rows:
            self._find_parts(row.spec, row.position, [])

    def _find_parts(self, spec: Any, number: int, way: list[Any]) -> None:
        """Parts of contexts that have a description alone, as a mesh of devices has."""
        if isinstance(spec, WrapperSpec):
            self._classes[spec.cls] = None
            self._find_part(spec.context, number, [*way, "context"])
            for k, inner in enumerate(spec.inners):
                self._find_parts(inner, number, [*way, k])
        elif isinstance(spec, OpaqueSpec):
            self._find_part(spec.value, number, way)

    def _find_part(self, value: Any, number: int, way: list[Any]) -> None:
        if (known := mesh_data(value)) is not None:
            self._parts.setdefault(id(value), (value, ["of input", number, way, known]))
        for k, part in enumerate(parts_of(value)):
            self._find_part(part, number, [*way, k])

    def other(self, value: Any, path: str) -> Any:
        """As any; a part of an input's context."""
        known = mesh_data(value)
        if known is not None:
            same = (data for _, data in self._parts.values() if data[3] == known)
            found = self._parts[id(value)][1] if id(value) in self._parts else next(same, None)
            return self.gap(path, "a mesh of devices that no input has") if found is None else found
        if isinstance(value, type) and issubclass(value, torch.Tensor):
            self._classes[value] = None
        return super().other(value, path)

    def meshes(self) -> Iterator[tuple[Any, Any]]:
        """Those of inputs, too."""
        yield from self._parts.values()
        yield from super().meshes()

    def classes(self) -> Any:
        """The wrapper classes, with fingerprints of their methods: some run where nothing is
        recorded."""
        found = []
        for cls in self._classes:
            name = name_of(cls)
            if name is not None and owner_of(cls) is not Owner.TORCH:
                found.append([name, fingerprint_of_class(cls)])
        return found

    def backwards(self, backwards: Backwards, graphs: Graphs) -> Any:
        """The backwards that are no backwards of backwards: those are traced anew."""
        compiled = [b for b in backwards.compiled if not b.when.create_graph]
        return {
            "inputs": backwards.inputs,
            "takes_batches": backwards.takes_batches,
            "output_paths": [*backwards.output_paths],
            "symbols": [self.value(s) for s in sorted(backwards.symbols, key=str)],
            "trace": backwards.trace or trace_of(backwards.forward_nodes),
            "compiled": [self._backward(b, f"backward[{k}]") for k, b in enumerate(compiled)],
        }

    def _backward(self, b: CompiledBackward, path: str) -> Any:
        return {
            "tangents": self.value(b.tangents, f"{path}.tangents"),
            "tangent_names": [*b.tangent_names],
            "inputs": self.value(b.inputs, f"{path}.inputs"),
            "grads": self.value(b.grads, f"{path}.grads"),
            "passed": self.value(b.passed, f"{path}.passed"),
            "conditions": self.value(b.when.conditions, f"{path}.conditions"),
            "autocast": self.value(b.when.autocast, f"{path}.autocast"),
            "dtensor": self.value(b.when.dtensor, f"{path}.dtensor"),
            "reads": None if b.reads is None else self.guards(b.reads),
            "half": self.half(half_of(b), path),
        }


def trace_of(nodes: Iterable[fx.Node]) -> str:
    """What the trace of a forward was like, so that another one is known to be the same: its
    operations, by name. Groups have other names in other processes."""
    rows = []
    for node in nodes:
        args, kwargs = [*node.args], dict(node.kwargs)
        for held, key in group_arguments(node, args, kwargs):
            held[key] = None
        named = fx.node.map_arg((tuple(args), kwargs), lambda n: n.name)
        rows.append(f"{node.name} {node.op} {node.target} {named!r}")
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:24]


# ---- reading
def read(data: Any, call: Roots, options: list[str], fakes: bool = True) -> Parts:
    """The parts of a description, for the roots of a call. Nothing of it is run.

    Args:
        options: those of the region that it shall serve.
        fakes: see `GraphReader`.

    Raises:
        DescriptionError: it is broken, of another version, or names something that is not loaded;
            the path names the field.
        Unlike: what is here is something else than what it was made of.
    """
    with _typed():
        _check(data, options)
        return _read(data, call, fakes)


def differs(data: Any, function: Any, options: list[str]) -> None:
    """Compare all that can be told without the arguments of a call: what is read of the function,
    its code, its parameters.

    Raises:
        DescriptionError: as `read`.
        Unlike: something is another one here.
    """
    with _typed():
        _check(data, options)
        _Apart(data, function).compare(data)


@contextlib.contextmanager
def _typed() -> Iterator[None]:
    """Whatever torch says of what is no graph, no size, no name."""
    try:
        yield
    except SubclassTraceError:
        raise
    except Exception as error:
        raise DescriptionError(
            "a broken description", got=f"{type(error).__name__}: {error}"
        ) from error


def _check(data: Any, options: list[str]) -> None:
    """What is compared as a whole."""
    if not isinstance(data, dict):
        raise DescriptionError("no description of a specialization", got=type(data).__name__)
    if data.get("versions") != versions():
        what = "the description was made by other versions of torch, Python or this package"
        raise DescriptionError(what, path="versions", expected=versions(), got=data.get("versions"))
    if not isinstance(gaps := data.get("gaps"), list):
        raise DescriptionError("a broken description", path="gaps", got=type(gaps).__name__)
    if gaps:
        raise DescriptionError(
            "the description has gaps: it is not portable",
            path="gaps",
            got="; ".join(map(str, gaps))[:400],
        )
    if data.get("options") != options:
        raise Unlike(Reason(f"options: expected {data.get('options')}, got {options}"))
    compare_ranks(data["ranks"])


def _read(data: dict[str, Any], call: Roots, fakes: bool) -> Parts:
    r = _Reader(data["places"], call, fakes, data["constants"])
    r.compare_classes(data["classes"])
    r.define(data["symbols"])
    r.learn(data["proofs"])
    r.find_inputs(data["guards"]["flat"])
    guards = r.guards(data["guards"])
    ambient = check(Ambient(**{str(name): r.value(value) for name, value in data["ambient"]}))
    plan = r.value(data["plan"])
    if not isinstance(plan, Plan):
        raise DescriptionError("no plan", path="plan", got=type(plan).__name__)
    backwards = data["backwards"]
    rest = (bool(data["alone"]), None if backwards is None else r.backwards(backwards))
    pairs = map(r.value, data["templates"])
    templates = {template_key(spec): (spec, template) for spec, template in pairs}
    reads = tuple(map(str, data["ranks"][2]))
    return Parts(ambient, guards, plan, r.half(data["forward"]), *rest, templates, reads)


class _Reader(GraphReader):
    """Reads what `_Writer` has written."""

    def compare_classes(self, data: Any) -> None:
        """The wrapper classes have the methods that they had."""
        for name, known in data:
            cls = self.value(["named", *name])
            if fingerprint_of_class(cls) != known:
                raise Unlike(Reason(f"the class {cls.__qualname__} has other methods"))

    def find_inputs(self, numbers: Any) -> None:
        """What contexts of inputs are written by: the inputs themselves, by their places."""
        self._flat: list[Any] = [self._read_or_none(self.at(number)) for number in numbers]

    def _read_or_none(self, place: Place) -> Any:
        try:
            return self.read(place)
        except Unlike:
            return None

    def _part(self, number: int, way: list[Any], known: Any) -> Any:
        at: Any = self._flat[number]
        if not isinstance(at, torch.Tensor):
            raise Unlike(Reason(f"input {number} is no tensor"))
        spec = flatten(at)[1]
        try:
            found = _follow(spec, way)
        except (AttributeError, IndexError, TypeError):
            raise Unlike(Reason(f"input {number} has another context")) from None
        if mesh_data(found) != known:
            raise Unlike(Reason(f"input {number} is on another mesh"))
        return found

    kinds: ClassVar[dict[str, Callable[..., Any]]] = {
        **GraphReader.kinds,
        "of input": lambda r, number, way, known: r._part(number, way, known),
    }

    def backwards(self, data: Any) -> BackwardsParts:
        """The backwards."""
        return BackwardsParts(
            int(data["inputs"]),
            bool(data["takes_batches"]),
            tuple(map(str, data["output_paths"])),
            frozenset(map(self.value, data["symbols"])),
            str(data["trace"]),
            tuple(map(self._backward, data["compiled"])),
        )

    def _backward(self, data: Any) -> BackwardParts:
        names = ("tangents", "inputs", "grads", "passed", "conditions", "autocast", "dtensor")
        return BackwardParts(
            **{name: self.value(data[name]) for name in names},
            tangent_names=tuple(map(str, data["tangent_names"])),
            reads=None if data["reads"] is None else self.guards(data["reads"]),
            half=self.half(data["half"]),
        )


class _OfACall(Exception):
    """It stands among the arguments of a call."""


class _Apart(_Reader):
    """Reads what does not hang on the arguments of a call."""

    def __init__(self, data: dict[str, Any], function: Any) -> None:
        super().__init__(
            data["places"], Roots((), {}, function), fakes=False, constants=data["constants"]
        )

    def read(self, place: Place) -> Any:
        """As any.

        Raises:
            _OfACall: the call is not there.
        """
        if place.moves or self._comes_later(place):
            raise _OfACall
        return super().read(place)

    def _place(self, before: Any, kind: str, key: Any, name: str | None = None) -> Place:
        try:
            return super()._place(before, kind, key, name)
        except _OfACall:
            return Place(None, "arg", 0, "an argument")

    def _part(self, number: int, way: list[Any], known: Any) -> Any:
        if self._flat[number] is None:
            raise _OfACall
        return super()._part(number, way, known)

    def compare(self, data: dict[str, Any]) -> None:
        """See `differs`."""
        self.compare_classes(data["classes"])
        flat = [*map(self.at, data["guards"]["flat"])]
        self._flat = [
            None if place.moves or self._comes_later(place) else self._read_or_none(place)
            for place in flat
        ]
        for row in data["guards"]["rows"]:
            with contextlib.suppress(_OfACall):
                read = self.row(*row)
                places = (read.place, *others_of(read))
                if not any(
                    place.moves or place.late or self._comes_later(place) for place in places
                ):
                    self._compare_row(read)
        with contextlib.suppress(_OfACall):  # parts of a plan may be those of arguments
            plan = self.value(data["plan"])
            for row in plan.inputs.rows:
                if (
                    (place := flat[row.position]).moves
                    or row.of_gradient
                    or self._comes_later(place)
                ):
                    continue
                if (why := other_input(row, self.read(place))) is not None:
                    raise Unlike(why)

    def _comes_later(self, place: Place) -> bool:
        """Is it the state of an optimizer, which a first step makes?"""
        for at in above(place):
            if at.kind == "item" and isinstance(at.key, torch.Tensor):
                try:
                    return at.read(self.call) is MISSING
                except GONE:
                    return True
        return False

    def _compare_row(self, row: Row) -> None:
        try:
            if row.holds(self.call):
                return
            why = row.why(self.call)
        except GONE as error:
            why = f"{row.place} is gone ({error!r})"
        raise Unlike(Reason(why, row.code))


def _follow(spec: Any, way: list[Any]) -> Any:
    """What stands in a spec, or in a context, some steps on."""
    for k, step in enumerate(way):
        if step == "context":
            at = spec.context
            for part in way[k + 1 :]:
                at = parts_of(at)[part]
            return at
        spec = spec.inners[step]
    return spec.value if isinstance(spec, OpaqueSpec) else spec
