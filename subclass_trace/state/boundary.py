"""Whose code is this: the user's and libraries', which runs as instrumented clones; torch's below
its Python of modules and optimizers, which is a C function to us; and this package's.

One list, `ENTERED`, names the Python code of torch's that reads the user's objects, and is read
like the user's.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from typing import Any

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_PATHS = {name: os.path.join(path, "") for name, path in sysconfig.get_paths().items()}
_HERE = os.path.join(_PACKAGE, "state", "")
_STDLIB = (_PATHS["stdlib"], _PATHS["platstdlib"], "<frozen")
#: Python of torch's that reads the user's objects
ENTERED = tuple(
    name.replace("/", os.sep)
    for name in (
        "nn/modules/",
        "nn/utils/",
        "optim/",
        "amp/grad_scaler.py",
        "distributions/",
        "distributed/tensor/parallel/",
        "distributed/algorithms/_checkpoint/",
        "distributed/tensor/experimental/",
        "_functorch/functional_call.py",
        "utils/_pytree.py",
        "utils/hooks.py",
        "utils/_foreach_utils.py",
        "utils/_contextlib.py",
        "_compile.py",
        "fx/graph_module.py",
        "fx/_lazy_graph_module.py",
    )
)
#: Python of this package that is read as the user's is; and what declared wrappers are made with,
#: which calls code of authors
_ZOO, _AUTHORING = (os.path.join(_PACKAGE, name, "") for name in ("zoo", "authoring"))

#: the region of a module is that module, its own hooks around it
_REGION_OF_MODULE = os.path.join(_PACKAGE, "frontends", "module.py")

_LOGGING = os.path.join("logging", "__init__.py")

_FUNCTION = os.path.join("torch", "autograd", "function.py")
_DTENSOR = os.path.join("torch", "distributed", "tensor", "_api.py")

ENTER, TORCH, AUTHORING, OURS = "enter", "torch", "authoring", "ours"


@functools.lru_cache(None)
def kind_of_file(filename: str) -> str:
    """`ENTER`: its code runs as clones; `TORCH`: a torch function; `AUTHORING`; `OURS`."""
    if filename.startswith(_AUTHORING):
        return AUTHORING
    if (
        filename.startswith(_PACKAGE)
        and not filename.startswith(_ZOO)
        and filename != _REGION_OF_MODULE
    ):
        return OURS
    if filename.startswith(_TORCH) and not filename[len(_TORCH) :].startswith(ENTERED):
        return TORCH
    return ENTER


#: of torch's own code, what would be done once, while the region is traced
_IN_EACH_CALL = (
    "torch.distributed.fsdp",
    "torch.distributed._composable.replicate",
    "torch.nn.parallel.distributed",
)


def is_managed(function: Any) -> bool:
    """Is it Python code of torch's that has to run in each call: it moves the memory of parameters,
    or tells a reducer?"""
    module = function.__globals__.get("__name__", "")
    # Dynamo asks for the second one, in branches of control flow.
    return (
        type(module) is str
        and module.startswith(_IN_EACH_CALL)
        and function.__name__ != "_get_active_ddp_module"
    )


def is_recorders(code: types.CodeType) -> bool:
    """Is it code of the recorder?"""
    return code.co_filename.startswith(_HERE)


def kind_of(code: types.CodeType) -> str:
    """The same of a code object; ``distribute_module`` calls functions of the user's by a
    lambda."""
    if code.co_name == "<lambda>" and code.co_filename.endswith(_DTENSOR):
        return ENTER
    if code.co_name == "wrapper" and code.co_filename.endswith(_FUNCTION):  # `once_differentiable`
        return ENTER
    return kind_of_file(code.co_filename)


@functools.lru_cache(None)
def is_compiled_by_dynamo(filename: str) -> bool:
    """Operators of control flow and the like, which hand the functions that they are given to
    Dynamo."""
    return filename.startswith(
        (_TORCH + "_higher_order_ops", os.path.join(_TORCH, "nn", "attention"))
    )


@functools.lru_cache(None)
def is_of_torch(filename: str) -> bool:
    """Any code of torch's."""
    return filename.startswith(_TORCH)


@functools.lru_cache(None)
def is_of_library(filename: str) -> bool:
    """Python's own code."""
    return filename.startswith(_STDLIB) and not filename.startswith(
        (_PATHS["purelib"], _PATHS["platlib"])
    )


@functools.lru_cache(None)
def is_users(filename: str) -> bool:
    """Neither of an installed package, nor of Python, nor of this one."""
    installed = (
        _PATHS["purelib"],
        _PATHS["platlib"],
        _PATHS["stdlib"],
        _PATHS["platstdlib"],
        _PACKAGE,
        "<frozen",
    )
    return not filename.startswith(installed)


@functools.lru_cache(None)
def is_transparent(filename: str) -> bool:
    """May code of this file run without instruments while C code is watched? Torch's, this
    package's, numpy's, importing."""
    if kind_of_file(filename) != ENTER or filename.startswith(
        ("<frozen", "<eval_with_key>", "<guards>")
    ):
        return True
    parts = filename.replace(os.sep, "/")
    return any(
        f"/{name}/" in parts for name in ("numpy", "sympy", "mpmath", "torchgen", "optree")
    ) or parts.endswith(("/copyreg.py", "/typing_extensions.py"))


_OPERATORS = os.path.join("torch", "_ops.py"), os.path.join("torch", "_library", "custom_ops.py")


def is_kernel(frame: Any, instrumented: Any) -> bool:
    """Does code that is not instrumented run as the kernel of an operator, called by torch's
    dispatcher? ``frame``: that of its caller."""
    while frame is not None and not instrumented(frame.f_code):
        if frame.f_code.co_filename.endswith(_OPERATORS):
            return True
        frame = frame.f_back
    return False


def is_called_by_others(frame: Any, instrumented: Any) -> bool:
    """Does code that is not instrumented run for torch's own ends, for this package's (which
    flattens and rebuilds wrappers), to import or to warn? ``frame``: that of its caller."""
    answer: bool | None = None
    while frame is not None and not instrumented(frame.f_code):
        file = frame.f_code.co_filename
        if file.startswith("<frozen importlib") or file.endswith(("warnings.py", _LOGGING)):
            return True
        if not file.startswith((_HERE, "<string>")) and not is_of_library(file):
            if kind_of_file(file) in (OURS, AUTHORING):
                return True
            answer = (is_transparent(file) or is_of_torch(file)) if answer is None else answer
        frame = frame.f_back
    return bool(answer)


def module_root(value: Any) -> str:
    """The name of the package that a class or function is of."""
    name = getattr(value, "__module__", None)
    return name.partition(".")[0] if type(name) is str else ""


_STDLIB_NAMES = frozenset(sys.stdlib_module_names)


def is_stdlib_name(name: str) -> bool:
    """Is it a module of Python's own?"""
    return name.partition(".")[0] in _STDLIB_NAMES
