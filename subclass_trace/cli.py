"""The command ``subclass-trace``: check a wrapper class, start a new one, look after the cache.

    subclass-trace check pkg.mod:MyTensor                        the rules, a table and the
                                                                 counterexamples
    subclass-trace check pkg.mod:MyTensor --json                 for machines
    subclass-trace check pkg.mod:MyTensor --html report.html     for people
    subclass-trace check --list                                  all rules
    subclass-trace check --explain ST308                         one rule: why
    subclass-trace check pkg.mod:MyTensor --programs calls.py    and the calls of a file
    subclass-trace new MyTensor --use weight                     a class and its test
    subclass-trace cache list                                    what st.compile(cache=True) keeps;
                                                                 also verify, clear
    subclass-trace cache pack FILE                               all of it in one file, for `cache
                                                                 unpack` elsewhere
    subclass-trace export pkg.mod:make --out model.pt2           what make() gives, (module, args[,
                                                                 kwargs]), as a program

Exit codes: 0 all rules hold, 1 some do not (of a cache: something is damaged), 2 the command could
not run (no such class, no way to build it, a fault of the kit).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .errors import OptionError, SubclassTraceError

OK, BROKEN, TROUBLE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options, often = _parser().parse_args(arguments), gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)  # what is imported is no garbage
    sys.path.insert(0, "")  # classes of the current directory
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except SubclassTraceError as error:
        print(error, file=sys.stderr)
        return TROUBLE
    except BrokenPipeError:  # who reads has enough: `| head`
        # Python flushes once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:  # a file cannot be written
        print(error, file=sys.stderr)
        return TROUBLE
    except ImportError as error:
        fix = "\n  fix:      pip install 'subclass_trace[testing]'" if error.name else ""
        print(f"{error}{fix}", file=sys.stderr)  # fsspec says itself what to install
        return TROUBLE
    finally:
        gc.set_threshold(*often)
        sys.path.remove("")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="subclass-trace",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for add in (_add_check, _add_new, _add_cache, _add_export):
        add(commands)
    return parser


def _add_check(commands: Any) -> None:
    c = commands.add_parser("check", help="run the conformance rules on a wrapper class")
    c.add_argument(
        "target",
        nargs="?",
        help="package.module:Class, or a function of dense tensors that makes one",
    )
    c.add_argument(
        "--factory",
        help="expression that makes one, {0} {1} for dense tensors: 'Cls({0}, scale=2.0)'",
    )
    c.add_argument(
        "--to-dense", help="expression for its dense value, {0} for the wrapper: '{0}.dequantize()'"
    )
    c.add_argument(
        "--sizes", nargs="+", metavar="SIZE", help="sizes of the dense tensors: 2,3 32,32"
    )
    c.add_argument(
        "--dtypes", nargs="+", metavar="DTYPE", help="dtypes of the dense tensors: float32 bfloat16"
    )
    c.add_argument(
        "--tolerance",
        type=float,
        metavar="T",
        help="rtol and atol for numbers, for classes that round",
    )
    c.add_argument(
        "--programs",
        type=Path,
        metavar="FILE",
        help="calls that must work: functions of x, y (and p) in it",
    )
    c.add_argument(
        "--use",
        choices=("weight", "parameter", "activation", "input"),
        help="what a model does with it",
    )
    c.add_argument(
        "--random", action="store_true", help="its operations draw random numbers by design"
    )
    c.add_argument("--valid", help="expression for the mask of meaningful elements: '{0}.mask'")
    c.add_argument("--rules", nargs="+", metavar="ID", help="only these: ST101, ST1, protocol")
    c.add_argument("--skip", nargs="+", metavar="ID", default=[], help="not these")
    c.add_argument("--profile", default="dev", choices=("dev", "ci", "thorough"))
    c.add_argument("--max-examples", type=int, metavar="N", help="examples per rule")
    c.add_argument("--json", action="store_true", help="print JSON")
    c.add_argument("--html", type=Path, metavar="FILE", help="write a page")
    c.add_argument(
        "--explain", metavar="ID", help="print why a rule exists, with an example, and stop"
    )
    c.add_argument("--list", action="store_true", help="print all rules and stop")
    c.set_defaults(run=_check)


def _add_new(commands: Any) -> None:
    n = commands.add_parser("new", help="write a new wrapper class and its test")
    n.add_argument("name", help="name of the class")
    n.add_argument(
        "--use", default="activation", choices=("activation", "weight"), help="what it is for"
    )
    n.add_argument("--directory", type=Path, default=Path("."), help="where (default: here)")
    n.set_defaults(run=_new)


def _add_cache(commands: Any) -> None:
    c = commands.add_parser(
        "cache",
        help="the directory in which st.compile(cache=True or 'graph') keeps what it traced",
    )
    c.add_argument(
        "action", choices=("list", "verify", "clear", "pack", "unpack"), help="what to do"
    )
    c.add_argument(
        "file", nargs="?", help="for pack and unpack: a path, or an address that fsspec opens"
    )
    c.add_argument("--directory", help="another one than SUBCLASS_TRACE_CACHE_DIR says")
    c.set_defaults(run=_cache)


def _add_export(commands: Any) -> None:
    c = commands.add_parser(
        "export", help="a module over wrappers as a torch.export program over dense tensors"
    )
    c.add_argument(
        "target", help="package.module:function that gives (module, args) or (module, args, kwargs)"
    )
    c.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="where: model.pt2, model.onnx"
    )
    c.add_argument("--aoti", action="store_true", help="compiled by AOTInductor")
    c.add_argument("--onnx", action="store_true", help="as ONNX")
    c.add_argument("--joint", action="store_true", help="with gradients")
    c.add_argument("--json", action="store_true", help="print what it takes and gives as JSON")
    c.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> int:
    import torch

    from .exporting import export
    from .stages import working
    from .torch_api.inductor import write_package

    folder = options.out.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    with _prints_aside(options):
        make = _named(options.target)
        made = _made(make, options.target) if callable(make) else make
    if not (isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[1], tuple)):
        raise OptionError(
            "the function gives something else",
            path=options.target,
            expected="(module, args) or (module, args, kwargs), args a tuple",
            got=type(made).__name__,
        )
    with (
        _prints_aside(options),
        working(f"export of {options.target}"),
        torch.no_grad() if not options.joint else torch.enable_grad(),
    ):
        exported = export(*made, joint=options.joint)
    with working(f"writing {options.out}"):
        if options.aoti:
            write_package(exported.program, str(options.out))
        elif options.onnx:
            model: Any = torch.onnx.export(exported.program, dynamo=True)
            model.save(options.out)
        else:
            torch.export.save(exported.program, options.out)
    names = [name for a in exported.arguments for name in a.names]
    state = list(exported.state.tensors)
    if options.json:
        print(
            json.dumps(
                {
                    "file": str(options.out),
                    "inputs": names,
                    "state": state,
                    "gradients": exported.gradients,
                }
            )
        )
    else:
        print(f"{options.out}: takes {', '.join(names)}; {len(state)} dense tensors of state")
    return OK


def _prints_aside(options: argparse.Namespace) -> contextlib.AbstractContextManager[Any]:
    """What code of the user's prints is no part of the JSON."""
    return contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext()


def _made(make: Callable[[], Any], target: str) -> Any:
    """What a function of the user's gives.

    Raises:
        OptionError: it raises.
    """
    try:
        return make()
    except Exception as error:
        raise OptionError(
            "the function raises", path=target, got=f"{type(error).__name__}: {error}"
        ) from error


def _named(target: str) -> Any:
    """What ``package.module:name`` names.

    Raises:
        OptionError: nothing.
    """
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"there is no {target}", path=target, got=str(error), fix="say package.module:function"
        ) from error


def _check(options: argparse.Namespace) -> int:
    from .testing.rules import load, select

    if options.list:
        for rule in load():
            print(f"{rule.id}  {rule.severity.value:7}  {rule.family:10}  {rule.title}")
        return OK
    if options.explain:
        print("\n\n".join(rule.page for rule in select([options.explain])), end="")
        return OK
    if options.target is None:
        print("say which class: subclass-trace check package.module:Class", file=sys.stderr)
        return TROUBLE
    from .testing import check
    from .testing.report import write_page

    with _prints_aside(options):
        report = check(
            options.target,
            rules=options.rules,
            skip=options.skip,
            profile=options.profile,
            max_examples=options.max_examples,
            **_how_to_build(options),
        )
    if options.json:
        print(json.dumps(report.as_json(), indent=1))
    else:
        print(report, end="")
    if options.html:
        print(f"wrote {write_page(report, options.html)}", file=sys.stderr)
    return TROUBLE if report.errors else BROKEN if report.failures else OK


def _how_to_build(options: argparse.Namespace) -> dict[str, Any]:
    """The options that `check` hands on: how to build instances."""
    import torch

    sizes, dtypes = None, None
    try:
        if options.sizes:
            sizes = [tuple(int(n) for n in size.split(",") if n) for size in options.sizes]
    except ValueError as error:
        raise OptionError(
            "--sizes cannot be read", expected="numbers with commas: 2,3 32,32", got=error
        ) from error
    if options.dtypes:
        dtypes = [getattr(torch, name.removeprefix("torch."), None) for name in options.dtypes]
        if not all(isinstance(d, torch.dtype) for d in dtypes):
            raise OptionError(
                "--dtypes cannot be read", expected="names: float32 bfloat16", got=options.dtypes
            )
    return {
        "programs": _programs(options.programs) if options.programs else None,
        "use": options.use,
        "random": options.random or None,
        "valid": options.valid,
        "factory": options.factory,
        "to_dense": options.to_dense,
        "tolerance": None if options.tolerance is None else (options.tolerance, options.tolerance),
        "sizes": sizes,
        "dtypes": dtypes,
    }


def _programs(path: Path) -> list[Any]:
    """The functions that a file defines: calls over ``x``, ``y`` and ``p`` that must work.

    Raises:
        OptionError: the file cannot be read or run, or has no function.
    """
    sys.path.insert(0, str(path.parent))
    try:
        names = vars(importlib.import_module(path.stem))
    except Exception as error:  # importing runs it
        got = f"{type(error).__name__}: {error}"
        raise OptionError(
            f"--programs {path} cannot be run", expected="a Python file", got=got
        ) from error
    found = [v for v in names.values() if inspect.isfunction(v) and v.__module__ == path.stem]
    if not found:
        raise OptionError(
            f"{path} has no program", expected="functions such as def call(x, y): return x @ y.t()"
        )
    return found


def _new(options: argparse.Namespace) -> int:
    from .authoring.scaffold import write_scaffold

    for path in write_scaffold(options.name, options.directory, use=options.use):
        print(f"wrote {path}")
    return OK


def _cache(options: argparse.Namespace) -> int:
    from .artifacts.commands import run

    return run(options.action, options.file, options.directory)


if __name__ == "__main__":
    sys.exit(main())
