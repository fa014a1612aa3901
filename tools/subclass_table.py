"""Write docs/subclasses.md: what was measured of the wrapper classes of other packages, and what is
refused.

python -m tools.subclass_table        run all programs (half a minute) and write the page
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "subclasses.md"
sys.path.insert(0, str(ROOT / "tests" / "torch_classes"))

_HEAD = """# Wrapper classes of other packages

Written by `python -m tools.subclass_table` from the programs in
`tests/torch_classes/class_table.py`; a test measures them again. Versions: {versions}; one CPU.

`as eager`: results, gradients and changed arguments are those of eager, inner tensor by inner
tensor, with their types. `no`: eager has no gradient there either. `-`: the program was not tried.
A name of an error: that is raised, and says what to do instead. The column "torch.compile" says
what `torch.compile(backend="subclass_trace", fullgraph=True)` does differently.

| class | package | forward | backward | in place | torch.compile | |
|---|---|---|---|---|---|---|
"""

_MORE = [
    (
        "`DTensor`, `AsyncCollectiveTensor`",
        "`tests/dtensor`",
        "four fake ranks, and gloo with one and two processes by `mp.spawn` and `torchrun`: "
        "tensor and sequence parallel "
        "modules, redistribution, partial gradients, uneven shards, two-dimensional meshes, "
        "AdamW, clipping, a rank that "
        "diverges",
    ),
    (
        "FSDP2 (`fully_shard`)",
        "`tests/dtensor/test_ranks.py`, `test_refused.py`",
        "around regions, and through `torch.compile`; inside a region it is refused, and "
        "parameters that the region "
        'gathers itself ("SimpleFSDP") take its place',
    ),
    (
        "`Float8Linear`, `Float8Tensor`, MX",
        "`tests/torchao_classes`",
        "training by all recipes, inference, inductor",
    ),
    (
        "torchao's wrappers inside of DTensor",
        "`tests/dtensor/test_nested_torchao.py`",
        "FP8 tensor parallelism; three levels of wrappers",
    ),
    (
        "`SparseSemiStructuredTensorCUTLASS`",
        "`tests/torch_classes/test_semi_structured.py`",
        "both sides packed; inner tensors that change their names under `t()`; real kernels "
        "where there is a GPU",
    ),
    (
        "`NestedTensor`, `ComplexTensor`, `LocalTensor`",
        "`tests/torch_classes`",
        "views, changes in place, other sizes",
    ),
    (
        "low-bit optimizers",
        "`tests/torchao_classes/test_torchao.py`",
        "`AdamW8bit`, `AdamW4bit`, `AdamWFp8`",
    ),
]

_REFUSED = [
    (
        "`MaskedTensor` as argument or result",
        "`ProtocolError`",
        "data and mask as two tensors with `torch.where`, or `subclass_trace.zoo.Masked`",
    ),
    (
        "parameters of bitsandbytes",
        "`ProtocolError`",
        "torchao's `quantize_`, or leave these layers in eager",
    ),
    ("`ShardedTensor`", "`ProtocolError`", "`DTensor`"),
    (
        "a class whose own code reads values of its tensors (`GPTQObserverTensor`)",
        "`DataDependentError`, names the class",
        "calibrate in eager",
    ),
    (
        "a module of FSDP2 that is called inside a region",
        "`UnsupportedError`",
        "`layer.forward = st.compile(layer.forward)`; `torch.compile(model, "
        'backend="subclass_trace")`; '
        "`weight.redistribute(...).to_local()`",
    ),
    (
        "a kernel that refuses what its fake kernel accepted (NVFP4 with dynamic activations on "
        "a CPU)",
        "the kernel's",
        "the error has a note with the operation, the line, and the paths of the operands",
    ),
]


def _table(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return f"\n## {title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page() -> str:
    """The whole text."""
    from class_table import ROWS, cells, installed, surroundings

    packages = [p for p in dict.fromkeys(row.package for row in ROWS) if installed(p)]
    missing = sorted({row.package for row in ROWS} - set(packages))
    if missing:
        raise SystemExit(f"the page needs all packages: pip install {' '.join(missing)}")
    versions = ", ".join(f"{p} {(installed(p) or '').partition('+')[0]}" for p in packages)
    with surroundings():
        rows = ["| " + " | ".join(cells(row)) + " |" for row in ROWS]
    more = _table("More about some of them", ("class", "tests", "what they show"), _MORE)
    refused = _table("Refused", ("what", "error", "instead"), _REFUSED)
    return _HEAD.format(versions=versions) + "\n".join(rows) + "\n" + more + refused


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
