"""A global is another one in the next process, where its type does not tell, or hashes have another seed: what was saved
is refused, or gives what eager mode gives (as a file, from a cache, as saved source).

``test_other_globals.py 0|1 FOLDER`` saves, and serves with the second text of each row; it prints what is wrong, as JSON.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: what -> the global in the first process, in the second one, what is read of it
EDITED = {
    "itemgetter": ("operator.itemgetter(0)", "operator.itemgetter(1)", "G((2.0, 3.0))"),
    "attrgetter": ("operator.attrgetter('real')", "operator.attrgetter('imag')", "G(2 + 3j)"),
    "methodcaller": ("operator.methodcaller('count', 1)", "operator.methodcaller('count', 2)", "G([1, 1, 2])"),
    "union": ("int | float", "int | str", "isinstance(2.0, G)"),
    "optional": ("typing.Optional[float]", "typing.Optional[int]", "isinstance(2.0, G)"),
    "pattern": ("re.compile('a+')", "re.compile('a')", "len(G.match('aa').group())"),
    "method of a pattern": ("re.compile('a+').match", "re.compile('a').match", "len(G('aa').group())"),
    "method of a text": ("'ab'.join", "'a'.join", "len(G('xyz'))"),
    "a member's value": ("enum.IntEnum('E', {'A': 2})", "enum.IntEnum('E', {'A': 3})", "G.A"),
    "several flags": ("enum.Flag('F', 'A B')(3)", "enum.Flag('F', 'A B')(1)", "G.value"),
    "registered": ("registered(int)", "registered(str)", "isinstance(3, G)"),
    "bases": ("type('C', (list,), {})", "type('C', (dict,), {})", "issubclass(G, dict)"),
    "names of a class": ("type('C', (), {'a': 1})", "type('C', (), {'a': 1, 'b': 1})", "len(dir(G))"),
    "bases of an error": ("type('X', (KeyError,), {})", "type('X', (OSError,), {})", "raised(G)"),
    "a template": ("string.Template('$a')", "string.Template('$a$a')", "len(G.substitute(a='x'))"),
    "a zone": ("zone(1)", "zone(2)", "G.utcoffset(None).seconds"),
    "precision": ("precision(3)", "precision(5)", "len(str(decimal.Decimal(1) / 3))"),
    "a flag of torch": ("mkldnn(True)", "mkldnn(False)", "torch.backends.mkldnn.enabled"),
    "a dtype of autocast": (
        "autocast(torch.bfloat16)",
        "autocast(torch.float16)",
        "torch.get_autocast_dtype('cpu').itemsize",
    ),
    "the recursion limit": ("sys.setrecursionlimit(2000)", "sys.setrecursionlimit(2001)", "sys.getrecursionlimit()"),
}
#: the same text, where hashes have another seed
SAME = {
    "order of a set": ("set('abcdef')", "ord([*G][0])"),
    "first of a set": ("set('abcdef')", "ord(next(iter(G)))"),
    "order of a literal": ("None", "ord([*{'a', 'b', 'c', 'd', 'e', 'f'}][0])"),
    "order of classes": ("{int, float, str, bytes, list}", "len([*G][0].__name__)"),
    "hash of a text": ("'a'", "hash(G) % 1000"),
    "hash of a tuple": ("('a', 1)", "hash(G) % 1000"),
    "hash by its method": ("'a'", "G.__hash__() % 1000"),
    "text of a function": ("registered", "sum(map(ord, repr(G)))"),
    "order of a sorted set": ("set('abcdef')", "ord(sorted(G)[0])"),
}
ROWS = {**EDITED, **{name: (text, text, read) for name, (text, read) in SAME.items()}}
HEAD = """
import abc, datetime, decimal, enum, operator, re, string, sys, torch, typing

def registered(kind):
    made = abc.ABCMeta("R", (), {})
    made.register(kind)
    return made

def raised(kind):
    try:
        raise kind
    except LookupError:
        return 2
    except Exception:
        return 3

def zone(hours):
    return datetime.timezone(datetime.timedelta(hours=hours))

def precision(digits):
    decimal.getcontext().prec = digits

def mkldnn(flag):
    torch.backends.mkldnn.enabled = flag

def autocast(dtype):
    torch.set_autocast_dtype("cpu", dtype)
"""


def module(folder: Path, k: int, second: bool) -> Any:
    *texts, read = [*ROWS.values()][k]
    path = folder / f"program_{k}.py"
    path.write_text(f"{HEAD}\nG = {texts[second]}\n\ndef f(x):\n    return x * ({read})\n")
    return imported(f"program_{k}", path)


def imported(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def save(folder: Path) -> dict[str, list[str]]:
    import torch

    import subclass_trace as st

    for k in range(len(ROWS)):
        f, x = module(folder, k, False).f, torch.ones(2)
        region = st.compile(f, backend="eager", frontend="trace")
        kept = st.compile(f, backend="eager", frontend="trace", cache=True)
        steps = [
            (kept, x),
            (region, x),
            (region.save, folder / f"{k}.save"),
            (region.save_source, folder / f"{k}.save_source"),
        ]
        for step, given in steps:
            with contextlib.suppress(st.SubclassTraceError):
                step(given)
    return {}


def serve(folder: Path) -> dict[str, list[str]]:
    import torch

    import subclass_trace as st

    def by_source(k: int, f: Any) -> Any:
        path = folder / f"{k}.save_source"
        source = imported(f"source_{k}", path.rename(path.with_suffix(".py")))
        return source.bind(f)(torch.ones(2))

    ways = {
        "file": lambda k, f: st.load(folder / f"{k}.save", f, backend="eager")(torch.ones(2)),
        "cache": lambda k, f: st.compile(f, backend="eager", cache=True)(torch.ones(2)),
        "source": by_source,
    }
    wrong: dict[str, list[str]] = {}
    for k, name in enumerate(ROWS):
        f = module(folder, k, True).f
        for way, run in ways.items():
            try:
                out = run(k, f)
            except Exception as error:
                refused = (
                    isinstance(error, (st.SubclassTraceError, FileNotFoundError))
                    or type(error).__name__ == "NoSpecialization"
                )
                if not refused or (way == "file" and name == "order of a sorted set"):
                    wrong.setdefault(name, []).append(f"{way}: {error!r}"[:300])
                continue
            if not torch.equal(out, f(torch.ones(2))):
                wrong.setdefault(name, []).append(way)
    return wrong


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("globals")
    for k in (0, 1):
        env = {**os.environ, "PYTHONHASHSEED": str(k + 1), "SUBCLASS_TRACE_CACHE_DIR": str(folder / "cache")}
        command = [sys.executable, "-B", "-W", "ignore", __file__, str(k), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ROWS)
def test_nothing_is_stale(wrong: Any, name: str) -> None:
    assert name not in wrong, wrong[name]


if __name__ == "__main__":
    print(json.dumps((save, serve)[int(sys.argv[1])](Path(sys.argv[2]))))
