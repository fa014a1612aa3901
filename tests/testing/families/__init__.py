"""Right wrapper classes, as strangers write them; `strangers.py` has one fault each for them.

They are text: a fault is a piece of the text that is another one. ``FAMILIES`` has name -> (source, options of `check`).
"""

from __future__ import annotations

from typing import Any

from .composed import BOTH, CARTESIAN, CORRECTED, LOWRANK, MASKED, UNITS
from .later import FIXED, LOGARITHMIC, NAMED, PADDED, PALETTE, RING
from .layered import FLIPPED, FLOAT8, LORA
from .quantised import DECLARED, DITHERED, SCALED, WEIGHT
from .spread import SHARDED, TRACKED
from .stacked import ENSEMBLE, RAGGED
from .stored import GROUPS, ROWS, STATE

HEAD = """\
import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map, tree_leaves, tree_map_only
import torch.nn.functional as F

aten = torch.ops.aten


def plain(*tensors):
    for t in tensors:
        if t is not None and (t.requires_grad or t.is_neg() or t.is_conj()):
            raise ValueError("data without gradients and lazy bits, please")
"""

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Scaled": (SCALED, {}),
    "Both": (BOTH, {"to_dense": "{0}.left"}),
    "Weight": (WEIGHT, {}),
    "Holes": (MASKED, {"factory": "Holes({0}, {0} > -0.5)", "valid": "{0}.present"}),
    "LowRank": (LOWRANK, {"factory": "LowRank.of({0})"}),
    "Quantity": (UNITS, {"to_dense": "{0}.number"}),
    "Cartesian": (CARTESIAN, {}),
    "Rows": (DECLARED, {}),
    "Corrected": (CORRECTED, {"factory": "Corrected({0}, {1})"}),
    "Dithered": (DITHERED, {"random": True, "tolerance": (0.3, 0.3)}),
    "Padded": (PADDED, {"factory": "Padded.pad({0})", "valid": "{0}.mask()"}),
    "Named": (NAMED, {"factory": "Named.label({0})", "to_dense": "{0}.plain_values()"}),
    "Logarithmic": (LOGARITHMIC, {}),
    "Palette": (PALETTE, {}),
    "Fixed": (FIXED, {"factory": "Fixed.from_dense({0})"}),
    "Ring": (RING, {"factory": "Ring.from_dense({0})"}),
    "Groups": (GROUPS, {"factory": "Groups.from_dense({0}, 2)"}),
    "State8": (STATE, {"factory": "State8.from_dense({0})"}),
    "RowSparse": (ROWS, {}),
    "Sharded": (SHARDED, {"factory": "Sharded.distribute({0}, 0)"}),
    "Tracked": (TRACKED, {"to_dense": "{0}.data_"}),
    "Lora": (LORA, {"factory": "Lora.of({0}, 3.0)"}),
    "Float8": (FLOAT8, {}),
    "Flipped": (FLIPPED, {}),
    "Ensemble": (ENSEMBLE, {}),
    "Ragged": (RAGGED, {"factory": "Ragged.from_dense({0}, 0)", "valid": "{0}.mask()"}),
}
