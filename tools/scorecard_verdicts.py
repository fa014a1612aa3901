"""What a reader of each finding found: (class, rule) -> whose fault it is and why. ``*`` stands for every class."""

from __future__ import annotations

VERDICTS: dict[tuple[str, str], str] = {
    ("*", "ST515"): (
        "*Class* (and torch): `Tensor.__deepcopy__` and `__reduce_ex__` take a wrapper whose `data_ptr()` is not 0 for a "
        "tensor with data; a wrapper with a storage offset has such a pointer. A class can avoid it with methods of its own, "
        "or by not passing on the storage offset."
    ),
}
