"""``processes.py save|serve FOLDER``: descriptions of all regions, and of what the modules in FOLDER make, go from one
process into another. Prints, as JSON, name -> how it went.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
import regions

import subclass_trace as st
from subclass_trace.capture.capture import Capture
from subclass_trace.errors import Unlike

_traces: list[int] = []
_capture = Capture.capture


def _noted(self: Any, run: Any) -> Any:
    _traces.append(1)
    return _capture(self, run)


def save(name: str, function: Any, args: Any, folder: Path) -> Any:
    region = st.compile(function, frontend="trace")
    regions.use(region, args)
    described = region.specializations[0].describe(*args)
    if described.gaps:
        return [str(gap) for gap in described.gaps]
    (folder / f"{name}.json").write_text(json.dumps(described.data))
    return None


def serve(name: str, function: Any, args: Any, make: Any, folder: Path) -> Any:
    region = st.compile(function, frontend="trace")
    _traces.clear()
    try:
        region.bind(json.loads((folder / f"{name}.json").read_text()), *args)
    except Unlike as error:
        return {"unlike": str(error)}
    dynamo = "torch._dynamo" in sys.modules
    found, traced = regions.use(region, args), len(_traces)
    again, args = make()
    equal = found == regions.use(st.compile(again, frontend="trace"), args)  # which other tests compare with eager
    return {"traced": traced, "equal": equal, "dynamo": dynamo}


def main() -> None:
    how, folder = sys.argv[1], Path(sys.argv[2])
    Capture.capture = _noted  # type: ignore[method-assign]
    sys.path.insert(0, str(folder))
    makes = {name: (lambda name=name: regions.make(name)) for name in regions.REGIONS}
    makes |= {path.stem: importlib.import_module(path.stem).make for path in sorted(folder.glob("user_*.py"))}
    found = {}
    for name, make in makes.items():
        function, args = make()
        if isinstance(function, torch.nn.Module) or callable(function):
            found[name] = (
                save(name, function, args, folder) if how == "save" else serve(name, function, args, make, folder)
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
