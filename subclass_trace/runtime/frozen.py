"""Frozen regions: what depends on weights alone is computed once, and each call looks whether a
weight has changed since.

A `Freezer` stands in the back end of a frozen region. Of each forward it makes a `FrozenProgram`:
the generated entry asks its `has_other_weights`, and calls its ``rest`` with its ``constants``.

What is compared: the object at its place, the tensors inside of it, their version counters and
memory, a few numbers of each on the CPU; and an optimizer's step is told by torch. See
docs/deploying.md for what that does not see.
"""

from __future__ import annotations

import ctypes
import operator
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.fx as fx
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..backends import Compiled
from ..backends.eager import graph_code
from ..errors import FrozenError, OptionError
from ..options import Options
from ..partition.folding import Folded, fold, origins_of
from ..partition.half import Half
from ..passes.batch_norm import but_inference, fold_batch_norms, lay_out_convolutions
from ..plan import LeafPrimal, Plan, ViewOutput
from ..plan.descriptors import Input
from ..state.place import Roots
from ..subclass.flatten import flatten, tensors_inside
from ..subclass.protocol import is_traceable
from ..torch_api.kinds import storage_key
from ..torch_api.modes import disable_autocast, no_overrides
from ..torch_api.trees import pytree
from ..torch_api.wrappers import make_wrapper_subclass
from .bind import other_input
from .specialize import copied_module

Tensor = torch.Tensor

_freezers: weakref.WeakSet[Freezer] = weakref.WeakSet()
#: so many numbers of each weight are compared in each call
_SAMPLE = 8
#: the hook that sees steps of optimizers, once a wrapper is frozen
_hooked: list[Any] = []


class Freezer:
    """What is frozen, and how.

    Attributes:
        module: whose weights these are; ``options``: of the region, if it was not frozen.
        how: the arguments of `freeze`.
        programs: what was made by now.
    """

    def __init__(
        self, module: torch.nn.Module, options: Options, mode: str, discard: bool, strict: bool
    ) -> None:
        self.module, self.options, self.how = module, options, (mode, discard, strict)
        self.may_grow, self.discard, self.strict = mode == "fold", discard, strict
        self.base = options.resolve_backend()
        self.programs: weakref.WeakSet[FrozenProgram] = weakref.WeakSet()
        self.is_discarded = False
        _freezers.add(self)

    def frozen(self) -> Options:
        """The options with a back end that has this in it, and compiles no backward."""
        base = self.base

        def table() -> dict[Any, Any]:
            return but_inference({} if base.decompositions is None else base.decompositions())

        own = replace(
            base,
            name=f"{base.name}, frozen",
            forward=_no_gradients,
            backward=_no_gradients,
            decompositions=table,
            freezer=self,
        )
        return replace(
            self.options,
            backend=own,
            fw_compiler=None,
            bw_compiler=None,
            options=None,
            frontend="trace",
        )

    def cut(self, half: Half) -> Folded:
        """A forward in two: what is computed once, and the rest."""
        own = Half.of_module(copied_module(half.module))
        inductor = self.base.name == "inductor"
        for rewrite in (fold_batch_norms, *([lay_out_convolutions] if inductor else [])):
            rewrite(own.owner.graph, origins_of(own, _is_weight).__contains__)
            own = Half.of_module(own.owner)
        return fold(own, _is_weight, may_grow=self.may_grow)

    def compile(self, half: Half, compiler: Callable[[Half], Compiled]) -> FrozenProgram:
        """A forward, compiled."""
        made = FrozenProgram(self, folded := self.cut(half), compiler(folded.rest))
        self.programs.add(made)
        return made

    def erase(self) -> None:
        """Weights that no program needs any more are given up."""
        self.is_discarded = True
        programs = [*self.programs]
        for program in programs:
            if program.pins is None:
                program.fold(program.weights())
        kept = {path for program in programs for path in program.kept}
        gone = {
            id(t): str(row.path)
            for program in programs
            for row, t in zip(program.rows, program.weights(), strict=True)
            if row in program.erasable and str(row.path) not in kept
        }
        made: dict[int, Tensor] = {}
        for module in self.module.modules():
            tables: tuple[Any, ...] = (module._parameters, module._buffers)
            for table, name, t in [(own, *row) for own in tables for row in own.items()]:
                if (path := gone.get(id(t))) is not None:
                    table[name] = made.setdefault(id(t), Erased(t, path))
        for program in programs:
            if program.pins is not None:
                program.pin(program.weights())


def refreeze(options: Options, name: str) -> None:
    """See `frontends.region.Region.refreeze`."""
    if (freezer := options.resolve_backend().freezer) is None:
        raise OptionError("the region is not frozen", path=name, fix="st.freeze(module)")
    for program in freezer.programs if freezer.is_discarded else ():
        for t in program.weights():
            if type(t) is Erased:
                raise t.error()
    for program in freezer.programs:
        program.pins = None


class _Pins(NamedTuple):
    """What the weights were when they were folded; it holds them, so that no other object, and no
    other memory, is at their address."""

    paths: list[str]
    tensors: list[Tensor]
    numbers: list[int]
    samples: dict[int, Any]
    known: list[bytes]


class FrozenProgram:
    """A forward of which a part is computed ahead.

    Attributes:
        rows: the inputs among its weights, which the entry hands to `has_other_weights` in this
        order; ``erasable``: those that nothing else needs; ``kept``: paths of weights that it
        reads. rest: what each call runs, of the other inputs and the ``constants``, which are
        computed ahead; ``own``: of what weights, and those that are no views of them, which other
        programs may have, too; ``pins``: of the weights; None: they are to be folded.
    """

    def __init__(self, freezer: Freezer, folded: Folded, rest: Compiled) -> None:
        self.freezer, self.folded, self.rest = freezer, folded, rest
        self.first = graph_code.compile_half(folded.first, name="constants").function
        self.constants, self.own = list[Tensor](), list[tuple[Any, Tensor]]()
        self.pins: _Pins | None = None
        self.stepped: str | None = None

    def bind(self, plan: Plan) -> list[int]:
        """Learn whose weights these are; the numbers of the inputs that the entry hands over."""
        leaves = [p.leaf if isinstance(p, LeafPrimal) else None for p in plan.inputs.primals]
        taken = {leaves[k] for k in self.folded.taken}
        live = {leaves[k] for k in self.folded.live}
        rows = plan.inputs.rows
        reads = [not (r.of_gradient or taken.isdisjoint(r.leaves)) for r in rows]
        numbers = [k for k, is_read in enumerate(reads) if is_read]
        self.rows, self.leaves = [rows[k] for k in numbers], [leaves[k] for k in self.folded.taken]
        self.places = [plan.inputs.descriptor(k).place for k in numbers]
        self.names = [*map(str, plan.inputs.described)]
        self.kept = {str(r.path) for r in rows if not live.isdisjoint(r.leaves)}
        views = [o for o in plan.results.outputs if isinstance(o, ViewOutput)]
        bases = {o.base for o in views if o.of_input}
        plain = plan.inputs.alias is None and not plan.inputs.offsets_matter
        self.erasable = [
            r
            for k, r in zip(numbers, self.rows, strict=True)
            if self.freezer.discard and plain and not r.facts and k not in bases
            if str(r.path) not in self.kept
        ]
        return numbers

    def weights(self) -> list[Tensor]:
        """What stands at the places of the weights."""
        roots = Roots((), {}, self.freezer.module)
        return [place.read(roots) for place in self.places]

    def has_other_weights(self, *weights: Tensor) -> bool:
        """Are the weights of another kind, so that another program has to be found?

        Raises:
            FrozenError: one is of the same kind, and was changed.
        """
        pins = self.pins
        if pins is None:
            return not self.fold(weights)
        tensors = self._tensors(weights)
        same = all(map(operator.is_, tensors, pins.tensors))
        if not same or self._numbers(tensors) != pins.numbers:
            return self._refuse(weights, pins)
        if [*map(_RAW, pins.samples.values())] != pins.known:
            return self._refuse(weights, pins)
        if self.stepped is not None:
            raise _changed(self.stepped, "written by the step of an optimizer")
        if self.freezer.strict and not self.freezer.is_discarded:
            self._compare(weights)
        return False

    def fold(self, weights: Sequence[Tensor]) -> bool:
        """Compute the constants; False: the weights are of another kind."""
        for row, t in zip(self.rows, weights, strict=True):
            if type(t) is Erased:
                raise t.error()
            if other_input(row, t) is not None:
                return False
        self.constants[:] = self._constants(weights)
        self.pin(weights)
        if self.freezer.discard and not self.freezer.is_discarded:
            self.freezer.erase()
        return True

    def pin(self, weights: Sequence[Tensor]) -> None:
        """From now on the weights are these."""
        inside = [[".".join(way) for way, _ in _inside(t)] for t in weights]
        self._walks = [
            (k, operator.attrgetter(*ways, ways[0])) for k, ways in enumerate(inside) if ways
        ]
        if self._walks and not _hooked:  # regions that step read torch's table of such hooks
            _hooked.append(register_optimizer_step_post_hook(_after_step))
        paths = [str(row.path) for row in self.rows]
        ways = [f"{path}.{way}" for path, own in zip(paths, inside, strict=True) for way in own]
        tensors = self._tensors(weights)
        self._dense = [k for k, t in enumerate(tensors) if not _is_empty(t)]
        self._versions = _slow_version if any(t.is_inference() for t in tensors) else _VERSION
        samples = {k: s for k in self._dense if (s := _sample(tensors[k])) is not None}
        self.stepped = None
        known = [*map(_RAW, samples.values())]
        self.pins = _Pins(paths + ways, tensors, self._numbers(tensors), samples, known)

    def note_step(self, parameters: set[int]) -> None:
        """An optimizer has written these."""
        for path, t in () if self.pins is None else zip(*self.pins[:2], strict=True):
            if id(t) in parameters:
                self.stepped = path

    def _tensors(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """The weights, and what is inside of them."""
        tensors = [*weights]
        for k, get in self._walks:
            tensors += get(weights[k])[:-1]
        return tensors

    def _numbers(self, tensors: list[Tensor]) -> list[int]:
        """What moves with a write that torch sees: versions, and addresses."""
        with no_overrides():
            return [
                *map(self._versions, tensors),
                *map(Tensor.data_ptr, map(tensors.__getitem__, self._dense)),
            ]

    def _constants(self, weights: Sequence[Tensor]) -> list[Tensor]:
        table: dict[int, Tensor] = {}
        for row, t in zip(self.rows, weights, strict=True):
            table.update(zip(row.leaves, flatten(t)[0], strict=True))
        leaves = [table[k] for k in self.leaves]  # type: ignore[index]
        lent = {*map(storage_key, leaves)}
        others: dict[Any, list[Tensor]] = {}
        for key, c in (row for program in self.freezer.programs for row in program.own):
            others.setdefault(key, []).append(c)

        def shared(key: Any, t: Tensor) -> Tensor:
            same = (c for c in others.get(key, ()) if c.stride() == t.stride() and _equal(c, t))
            return t if storage_key(t) in lent else next(same, t)

        keys = [frozenset(self.names[k] for k in origin) for origin in self.folded.origins]
        made = [*map(shared, keys, computed(self.folded.first, leaves, self.first))]
        rows = zip(keys, made, strict=True)
        self.own = [(key, c) for key, c in rows if storage_key(c) not in lent]
        return made

    def _compare(self, weights: Sequence[Tensor]) -> None:
        """Compute the constants again.

        Raises:
            FrozenError: they are other ones.
        """
        now = zip(self._constants(weights), self.constants, self.folded.origins, strict=True)
        for new, old, origin in now:
            if new is not old and not _equal(new, old):
                names = " or ".join(self.names[k] for k in sorted(origin))
                raise _changed(names, "other numbers: the constants made of it are other ones")

    def _refuse(self, weights: Sequence[Tensor], pins: _Pins) -> bool:
        kinds = zip(self.rows, weights, strict=True)
        if any(type(t) is not Erased and other_input(row, t) for row, t in kinds):
            return True
        tensors = self._tensors(weights)
        for path, now, then in zip(pins.paths, tensors, pins.tensors, strict=True):
            if now is not then:
                raise _changed(path, "another tensor")
        count, numbers = len(tensors), self._numbers(tensors)
        for k, (now_is, was) in enumerate(zip(numbers, pins.numbers, strict=True)):
            if now_is != was:
                index, how = (
                    (k, f"written: version {now_is} instead of {was}")
                    if k < count
                    else (self._dense[k - count], "other memory, as after .data = ...")
                )
                raise _changed(pins.paths[index], how)
        for (k, sample), was_bytes in zip(pins.samples.items(), pins.known, strict=True):
            if sample.raw != was_bytes:
                raise _changed(pins.paths[k], "other numbers, written past autograd (.data)")
        return False  # somebody has put it back meanwhile


def computed(first: Half, leaves: list[Tensor], run: Any = None) -> list[Tensor]:
    """The constants of dense weights, with the strides of the trace, in memory that is not larger.

    ``run``: the compiled half.
    """
    run = run or graph_code.compile_half(first, name="constants").function
    of_weights = {*map(storage_key, leaves)}

    def kept(t: Tensor, like: Tensor) -> Tensor:
        large = t.untyped_storage().nbytes() > t.numel() * t.element_size()
        if (large and storage_key(t) not in of_weights) or t.stride() != like.stride():
            own = torch.empty_strided(t.shape, like.stride(), dtype=t.dtype, device=t.device)
            return own.copy_(t)
        return t

    with torch.inference_mode(False), torch.no_grad(), disable_autocast():
        made = run([t.detach() for t in leaves])
        return [kept(t, n.meta["val"]) for t, n in zip(made, first.outputs, strict=True)]


class Erased(Tensor):
    """Stands where a weight stood that was given up: any operation raises."""

    _path: str

    @staticmethod
    def __new__(cls, like: Tensor, path: str) -> Erased:
        """``like``: what it looks like."""
        size = like.shape, like.stride(), like.storage_offset()
        rest = None, like.dtype, torch.strided, like.device
        made: Any = make_wrapper_subclass(cls, *size, *rest, False, False)
        made._path = path
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Raises."""
        given = pytree.tree_leaves((args, kwargs))
        raise next(t for t in given if isinstance(t, Erased)).error()

    def __tensor_flatten__(self) -> Any:
        """Raises."""
        raise self.error()

    __tensor_unflatten__ = staticmethod(__tensor_flatten__)  # a trace takes it apart, and no more

    def error(self) -> FrozenError:
        """What using it says."""
        return FrozenError(
            "a weight was given up when its module was frozen with discard=True",
            path=self._path,
            expected="calls of the frozen region, of the kinds that it was called with before",
            fix="freeze without discard=True; or assign a new weight and call refreeze()",
        )

    def __repr__(self) -> str:  # type: ignore[override]
        """Without contents."""
        return f"<{self._path}: given up>"


def _is_weight(node: fx.Node) -> bool:
    """Is it a tensor of the module's, or of another place that stands still?"""
    d = node.meta.get("descriptor")
    return isinstance(d, Input) and all(
        i.is_static and i.kind != "optimizer state" and not (i.place.moves or i.place.late)
        for i in (d, *d.also)
    )


def _no_gradients(module: Any, inputs: Any) -> Any:
    raise FrozenError(
        "a frozen region has no gradients",
        expected="a call under torch.no_grad() or torch.inference_mode(), or nothing that requires "
        "grad",
        fix="with torch.no_grad(): ...",
    )


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Writes by foreach and fused kernels move no version of a wrapper. (Those of a compiled step
    do, of the tensors inside.)"""
    if torch.compiler.is_compiling():
        return
    every = (p for group in optimizer.param_groups for p in group["params"])
    written = {id(p) for p in every if p.grad is not None}
    for freezer in [*_freezers]:
        for program in [*freezer.programs]:
            program.note_step(written)


_VERSION, _RAW = operator.attrgetter("_version"), operator.attrgetter("raw")


def _slow_version(t: Tensor) -> int:
    return -1 if t.is_inference() else t._version


def _inside(t: Tensor) -> list[tuple[tuple[str, ...], Tensor]]:
    return [] if type(t) is Erased else tensors_inside(t)


def _is_empty(t: Tensor) -> bool:
    """Has it no memory of its own?"""
    return type(t) is Erased or is_traceable(t)


def _sample(t: Tensor) -> Any:
    """The memory of a few numbers in the midst of a dense tensor, which is held elsewhere."""
    if t.device.type != "cpu" or t.layout is not torch.strided or not t.numel():
        return None
    whole, size = t.is_contiguous(), t.element_size()
    count = min(_SAMPLE, t.numel()) if whole else 1
    start = (t.numel() - count) // 2 if whole else 0
    return (ctypes.c_char * (count * size)).from_address(t.data_ptr() + start * size)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Have they the same numbers? NaN is NaN."""
    if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
        return False
    of_bytes = (t.contiguous().view(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(a, b) or torch.equal(*of_bytes)


def _changed(path: object, how: str) -> FrozenError:
    return FrozenError(
        "a weight has changed since it was frozen",
        path=path,
        expected="the weight as it was",
        got=how,
        fix="call refreeze() of the frozen region, which folds again without a trace",
    )
