"""What Dynamo is known to get wrong without an error: frames with it run eagerly, with a warning.

When Dynamo hands a graph to a back end, it tells which code objects it has taken apart. So this is
not guessed from names in the user's code, and holds beside whatever our own trace has refused.
"""

from __future__ import annotations

import dis
import functools
import gc
import inspect
import os
import types
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from .dynamo_methods import heard
from .lines import warn_user

Codes = Collection[types.CodeType]
_ENVIRON = type(os.environ)
_ENCODE: Any = os.environ.encodekey  # runs before a key is looked up
#: the environment's own code
_READS_ENVIRONMENT = frozenset(
    method.__code__
    for method in (
        os.getenv,
        _ENVIRON.__getitem__,
        _ENVIRON.__iter__,
        _ENVIRON.__len__,
        _ENVIRON.copy,
        _ENCODE,
    )
)
#: of a frame without a graph no back end hears; what its code names is taken to be read
TAKEN_FOR_CONSTANT = frozenset(("environ", "environb", "getenv", "getrecursionlimit"))
READS_WORLD = "os.environ, or a limit of Python's, is read, which Dynamo takes for constant"
#: methods that change what they are called on
_CHANGES = frozenset(
    {
        "add",
        "append",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "setdefault",
        "update",
    }
)
_WEAK_SET = weakref.WeakSet.add.__code__.co_filename
_STORES = ("STORE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR", "STORE_DEREF", "DELETE_")


def _reads_environment(graph: torch.fx.GraphModule, codes: Codes) -> bool:
    return not _READS_ENVIRONMENT.isdisjoint(codes)


def _makes_nodes(graph: torch.fx.GraphModule, code: types.CodeType) -> bool:
    """Is a node of the graph made by this code?"""
    texts = (node.meta.get("stack_trace") or "" for node in graph.graph.nodes)
    lines = (line for text in texts for line in text.splitlines())
    place = f'File "{code.co_filename}"'
    return any(place in line and line.endswith(f"in {code.co_name}") for line in lines)


def _has_effects(code: types.CodeType) -> bool:
    if not _CHANGES.isdisjoint(code.co_names):
        return True
    return any(i.opname.startswith(_STORES) for i in dis.get_instructions(code))


def _objects() -> list[Any]:
    """What the collector knows, and what the caller has frozen (a server, before it forks)."""
    if not gc.get_freeze_count():
        return gc.get_objects()
    gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        gc.freeze()


def _calls_cached(graph: torch.fx.GraphModule, codes: Codes) -> bool:
    """Dynamo runs the function behind ``functools.lru_cache`` again, and keeps nothing.

    That is another result where it makes tensors, or changes something.
    """
    from torch._dynamo import polyfills

    if polyfills.getattr_and_trace.__code__ not in codes:  # which takes wrappers apart
        return False
    caches = (o for o in _objects() if type(o) is functools._lru_cache_wrapper)
    own = {getattr(cache.__wrapped__, "__code__", None) for cache in caches} & {*codes}
    return any(_makes_nodes(graph, code) or _has_effects(code) for code in own if code)


def _functions(cls: Any) -> Iterator[Any]:
    for sub in type.__subclasses__(cls):
        yield sub
        yield from _functions(sub)


def _transforms_custom_function(graph: torch.fx.GraphModule, codes: Codes) -> bool:
    """Dynamo differentiates the forward of the Function, and forgets its ``backward``, ``jvp``."""
    import torch._functorch.eager_transforms as transforms

    names = ("grad_and_value_impl", "_vjp_with_argnums", "_jvp_with_argnums")
    derivatives = (getattr(transforms, name, None) for name in names)
    if not any(getattr(f, "__code__", None) in codes for f in derivatives):
        return False
    own = (vars(cls).get("forward") for cls in _functions(torch.autograd.Function))
    return any(getattr(getattr(f, "__func__", f), "__code__", None) in codes for f in own)


def _draws_from_objects(graph: torch.fx.GraphModule, codes: Codes) -> bool:
    """``random.Random`` objects, whose state Dynamo does not move on."""
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.variables.misc import RandomVariable

    try:
        known: Any = InstructionTranslator.current_tx().output.side_effects.id_to_variable
    except AttributeError:  # a graph that Dynamo has not made
        return False
    return any(isinstance(variable, RandomVariable) for variable in known.values())


def _draws_for_numpy(graph: torch.fx.GraphModule, codes: Codes) -> bool:
    """(But with ``torch._dynamo.config.use_numpy_random_stream``.)"""
    functions = (getattr(node.target, "f", None) for node in graph.graph.nodes)
    return any(getattr(f, "__module__", None) == "torch._numpy.random" for f in functions)


def _adds_weakly(graph: torch.fx.GraphModule, codes: Codes) -> bool:
    return any(code.co_filename == _WEAK_SET and code.co_name in _CHANGES for code in codes)


def _is_coroutine(graph: torch.fx.GraphModule, codes: Codes) -> bool:
    asynchronous = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
    return any(code.co_flags & asynchronous for code in codes)


#: what it is, in words -> is it in this graph, made of these code objects?
DYNAMO_FAULTS: dict[str, Callable[[torch.fx.GraphModule, Codes], bool]] = {
    READS_WORLD: _reads_environment,
    "functools.lru_cache keeps results, and Dynamo runs the function again": _calls_cached,
    "a random.Random object is drawn from, whose state Dynamo forgets": _draws_from_objects,
    "numpy.random is drawn from, for which Dynamo draws of torch's generator": _draws_for_numpy,
    "a WeakSet is written, which then loses what the frame has made": _adds_weakly,
    "it is a coroutine, for whose compiled code Dynamo writes past the frame": _is_coroutine,
    "Dynamo ignores the derivative of a Function in torch.func": _transforms_custom_function,
}


def skip_known_faults(graph: torch.fx.GraphModule) -> None:
    """Called by a back end, with the graph that it is given.

    Raises:
        SkipFrame: Dynamo then runs the frame eagerly, from now on.
    """
    from torch._dynamo.exc import SkipFrame
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    codes = frozenset(() if context is None else context.get_traced_code() or ())
    if not codes:  # somebody else than Dynamo has made the graph
        return
    heard(codes)
    for what, is_there in DYNAMO_FAULTS.items():
        if is_there(graph, codes):
            warn_user(f"a call of a region runs eagerly in part: {what}")
            raise SkipFrame(what)
