"""Write the table "What Dynamo itself refuses" of docs/dynamo.md.

python -m tools.dynamo_table        run all programs (half a minute) and write the table
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "dynamo.md"
sys.path.insert(0, str(ROOT / "tests" / "dynamo"))
BEGIN, END = "<!-- written by python -m tools.dynamo_table -->\n", "<!-- end -->\n"
_HEAD = '| program | Dynamo, with `backend="eager"` too | `st.compile` |\n|---|---|---|\n'


def table() -> str:
    """The lines between the two marks."""
    from refused_programs import PROGRAMS, row

    missing = sorted({p.package for p in PROGRAMS.values() if not p.installed})
    if missing:
        raise SystemExit(f"the table needs all packages: pip install {' '.join(missing)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _HEAD + "".join(f"{row(p)}\n" for p in PROGRAMS.values())


if __name__ == "__main__":
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}{table()}{END}{tail}", encoding="utf-8")
