"""What docs/dynamo.md says that Dynamo itself refuses: the same with ``backend="eager"``, and what ``st.compile`` does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from refused_programs import PROGRAMS, row, through_dynamo

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning"),
]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "dynamo.md"


@pytest.mark.parametrize("name", PROGRAMS)
def test_dynamo_refuses(name: str) -> None:
    program = PROGRAMS[name]
    if not program.installed:
        pytest.skip(f"{program.package} is not installed: pip install 'subclass_trace[{program.package}]'")
    error = through_dynamo(program, "subclass_trace")
    wordings = (program.error,) if torch.__version__.startswith("2.13.") else (program.error, *program.earlier)
    assert error is not None and re.search("|".join(wordings), str(error))
    assert not isinstance(error, torch._dynamo.exc.BackendCompilerFailed)
    if torch.__version__.startswith("2.13."):  # other versions word it otherwise
        assert row(program) in PAGE.read_text(encoding="utf-8").splitlines(), (
            "write it with: python -m tools.dynamo_table"
        )
