"""Which faults of torch are repaired, since when torch has had them, and where they are reported.

`tests/test_repairs.py` has a demonstration of each, with torch alone: it fails where this torch has
a fault that its row does not tell of, and where it has one no more. A repair can go once no version
that `torch_api.versions` names has its fault.
"""

from __future__ import annotations

from typing import NamedTuple

from ..versions import TORCH_HERE


class Repair(NamedTuple):
    """A fault of torch's.

    Attributes:
        module: what mends it, a module of this package.
        fault: what torch does.
        issue: number of pytorch/pytorch, 0: none is known.
        before: the first version without it, None: the newest one that was tried has it.
    """

    module: str
    fault: str
    issue: int = 0
    before: tuple[int, int] | None = None

    def is_of(self, version: tuple[int, ...] = TORCH_HERE) -> bool:
        """Has this version the fault? That of the torch that runs, if none is given."""
        return self.before is None or version[:2] < self.before


REPAIRS: dict[str, Repair] = {
    "copy to the same device": Repair(
        "fake_kernels", "the fake result of _to_copy(x, device=x.device) is x itself"
    ),
    "dropout of nothing": Repair(
        "fake_kernels", "the fake result of native_dropout(x, 0, True) is x itself"
    ),
    "distributions": Repair(
        "fake_kernels", "binomial, histogram, gradients of gamma have no fake kernel"
    ),
    "random sizes": Repair(
        "fake_kernels", "rand with a generator has no fake kernel for symbolic sizes"
    ),
    "unique": Repair(
        "fake_kernels", "_unique runs on zeros: a fake result of one element", before=(2, 13)
    ),
    "order of FFT": Repair(
        "fake_kernels", "the fake result has the dimensions in another order", 106623, (2, 12)
    ),
    "strides": Repair(
        "layouts", "fake results have strides that the kernels of a CPU do not give", 78050
    ),
    "dropout between layers": Repair(
        "composites", "recurrent layers in Python leave out the dropout between layers"
    ),
    "dropout of all": Repair("composites", "dropout(x, 1) in Python draws random numbers"),
    "margin losses": Repair(
        "composites",
        "multilabel_margin_loss in Python has a dimension where the kernel has none; before "
        "torch 2.14 it counts class 0 for padding",
        141017,
    ),
    "interpolation": Repair("composites", "interpolations in Python round in another way"),
    "backward of interpolation": Repair(
        "fake_kernels", "backwards of interpolations take no symbolic sizes"
    ),
    "parts for wrappers": Repair(
        "composites", "with the Python dispatcher, a class gets the parts of losses and norms"
    ),
    "sizes of pooling": Repair(
        "composites",
        "the size of pooling's result asks whether a division has a remainder",
        before=(2, 13),
    ),
    "views of jagged tensors": Repair(
        "jagged", "what torch makes once for their views is fake where a fake mode comes first"
    ),
    "fast paths": Repair(
        "fast_paths", "an encoder layer takes another way where a function mode is active"
    ),
    "learning rate 0": Repair(
        "optimizers", "Dynamo runs Adam in the form that divides by the learning rate"
    ),
    "workspace of LSTM": Repair(
        "recurrent", "mkldnn_rnn_layer keeps nothing for its backward where grad mode is off"
    ),
    "strided shards": Repair(
        "strided_shards", "a DTensor with a _StridedShard loses a flag as it is flattened", 174831
    ),
}
