"""Which code runs as instrumented clones: the user's and libraries', and of torch's its Python of
modules and optimizers. The rest of torch's is a C function to us (`torch_api.owners` tells whose a
file is).

One list, `ENTERED`, names the Python code of torch's that reads the user's objects, and is read
like the user's.
"""

from __future__ import annotations

import functools
import os
import types
from typing import Any

from ..torch_api.owners import OUR_FILES, TORCH_FILES, Owner, owner_of_file

_HERE = os.path.join(OUR_FILES, "state", "")
#: Python of torch's that reads the user's objects
ENTERED = tuple(
    name.replace("/", os.sep)
    for name in (
        "backends/",
        "nn/attention/__init__.py",
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
_ZOO, _AUTHORING = (os.path.join(OUR_FILES, name, "") for name in ("zoo", "authoring"))

#: the region of a module is that module, its own hooks around it
_REGION_OF_MODULE = os.path.join(OUR_FILES, "frontends", "module.py")

_LOGGING = os.path.join("logging", "__init__.py")

_FUNCTION = os.path.join("torch", "autograd", "function.py")
_CHECKPOINT = os.path.join("torch", "utils", "checkpoint.py")
_DTENSOR = os.path.join("torch", "distributed", "tensor", "_api.py")

#: functions of `checkpoint_sequential`, which calls the user's layers, or what these close over
_IN_SEQUENCE = frozenset(("checkpoint_sequential", "run_function", "functions"))

ENTER, TORCH, AUTHORING, OURS = "enter", "torch", "authoring", "ours"


@functools.lru_cache(None)
def kind_of_file(filename: str) -> str:
    """`ENTER`: its code runs as clones; `TORCH`: a torch function; `AUTHORING`; `OURS`."""
    if filename.startswith(_AUTHORING):
        return AUTHORING
    if (
        filename.startswith(OUR_FILES)
        and not filename.startswith(_ZOO)
        and filename != _REGION_OF_MODULE
    ):
        return OURS
    if filename.startswith(TORCH_FILES) and not filename[len(TORCH_FILES) :].startswith(ENTERED):
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
    if code.co_filename.endswith(_CHECKPOINT):
        named = _IN_SEQUENCE.intersection((code.co_name, *code.co_freevars))
        return ENTER if named else TORCH
    return kind_of_file(code.co_filename)


@functools.lru_cache(None)
def is_compiled_by_dynamo(filename: str) -> bool:
    """Operators of control flow and the like, which hand the functions that they are given to
    Dynamo."""
    return filename.startswith(
        (TORCH_FILES + "_higher_order_ops", os.path.join(TORCH_FILES, "nn", "attention"))
    )


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
        if not file.startswith((_HERE, "<string>")) and owner_of_file(file) is not Owner.PYTHON:
            if kind_of_file(file) in (OURS, AUTHORING):
                return True
            if answer is None:
                answer = is_transparent(file) or owner_of_file(file) is Owner.TORCH
        frame = frame.f_back
    return bool(answer)
