"""Operations that do what the instruction does, no more; a called Python function is cloned.

It needs neither torch nor pytest, so that any Python can run it: `load()` takes the instrumenter
alone.
"""

import importlib
import operator
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

_BINARY = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "@": "matmul",
    "&": "and_",
    "|": "or_",
    "^": "xor",
    "<<": "lshift",
    ">>": "rshift",
}


def load() -> Any:
    """The instrumenter of this tree, without the rest of the package."""
    root = pathlib.Path(__file__).resolve().parents[2] / "subclass_trace"
    for name, folder in (("subclass_trace", root), ("subclass_trace.state", root / "state")):
        sys.modules[name] = package = types.ModuleType(name)
        package.__path__ = [str(folder)]  # type: ignore[attr-defined]
    return importlib.import_module("subclass_trace.state.instrument")


class Plain:
    """The operations.

    Attributes:
        asked: names of operations, as they were asked, with what the instruction said.
        cloned: names of functions that were called as clones.
    """

    def __init__(self, instrumenter: Any) -> None:
        self.instrumenter = instrumenter
        self.asked: list[tuple[str, Any]] = []
        self.cloned: list[str] = []
        names = [name for name in dir(self) if name.startswith("do_")]
        for name in names:
            operation = name[3:].rstrip("_")
            instrumenter.OPS[operation] = self._noting(operation, getattr(self, name))

    def _noting(self, operation: str, do: Callable[..., Any]) -> Callable[..., Any]:
        asked = self.asked

        def noting(*parts: Any) -> Any:
            is_said = len(parts) > 1 or type(parts[0]) is str
            asked.append((operation, parts[0] if is_said else None))
            return do(*parts)

        def calling(f: Any, /, *args: Any, **kwargs: Any) -> Any:
            asked.append((operation, None))
            return do(f, *args, **kwargs)

        return calling if operation == "call" else noting

    # calls
    def do_call(self, f: Any, /, *args: Any, **kwargs: Any) -> Any:
        if type(f) is types.FunctionType:
            self.cloned.append(f.__name__)
            f = self.instrumenter.clone(f)
        elif type(f) is types.MethodType and type(f.__func__) is types.FunctionType:
            self.cloned.append(f.__func__.__name__)
            f = types.MethodType(self.instrumenter.clone(f.__func__), f.__self__)
        elif f in (globals, locals):
            frame = self.instrumenter.instrumented_frame()
            return frame.f_globals if f is globals else dict(frame.f_locals)
        return f(*args, **kwargs)

    def do_call0(self, pair: tuple[Any, Any]) -> Any:
        slot, f = pair
        call = self.instrumenter.OPS["call"]
        return call(f) if slot is call else call(slot, f)

    def do_call_ex(self, parts: tuple[Any, ...]) -> Any:
        f, args, *kwargs = parts
        return self.instrumenter.OPS["call"](f, *args, **(kwargs[0] if kwargs else {}))

    def do_call_tuple(self, parts: tuple[Any, ...]) -> Any:
        return self.instrumenter.OPS["call"](*parts)

    def do_call_kw(self, parts: tuple[Any, ...]) -> Any:
        *args, names = parts
        positional = len(args) - len(names)
        keywords = dict(zip(names, args[positional:], strict=True))
        return self.instrumenter.OPS["call"](*args[:positional], **keywords)

    # attributes
    def do_attr(self, name: str, o: Any) -> Any:
        return getattr(o, name)

    def do_super_attr(self, name: str, parts: tuple[Any, Any, Any]) -> Any:
        made, kind, o = parts
        assert made is super
        return getattr(super(kind, o), name)

    def do_set_attr(self, name: str, pair: tuple[Any, Any]) -> None:
        value, o = pair
        setattr(o, name, value)

    def do_del_attr(self, name: str, o: Any) -> None:
        delattr(o, name)

    # variables
    def do_global(self, name: str) -> Any:
        frame = self.instrumenter.instrumented_frame()
        for space in (frame.f_globals, frame.f_builtins):
            try:
                return space[name]
            except KeyError:
                continue
        error = NameError(f"name '{name}' is not defined")
        error.name = name
        raise error

    def do_name(self, name: str) -> None:
        pass

    def do_write_global(self, name: str) -> None:
        pass

    def do_cell(self, name: str, cell: Any) -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            raise NameError(f"free variable '{name}' has no value") from None

    def do_write_cell(self, cell: Any) -> None:
        assert type(cell) is types.CellType

    # items
    def do_item(self, pair: tuple[Any, Any]) -> Any:
        return pair[0][pair[1]]

    def do_set_item(self, parts: tuple[Any, Any, Any]) -> None:
        value, o, key = parts
        o[key] = value

    def do_del_item(self, pair: tuple[Any, Any]) -> None:
        del pair[0][pair[1]]

    def do_slice(self, parts: tuple[Any, Any, Any]) -> Any:
        o, start, stop = parts
        return o[start:stop]

    def do_set_slice(self, parts: tuple[Any, Any, Any, Any]) -> None:
        value, o, start, stop = parts
        o[start:stop] = value

    # operators
    def do_is(self, negated: bool, pair: tuple[Any, Any]) -> bool:
        return (pair[0] is pair[1]) is not negated

    def do_contains(self, negated: bool, pair: tuple[Any, Any]) -> bool:
        return pair[0] not in pair[1] if negated else pair[0] in pair[1]

    def do_binary(self, symbol: str, pair: tuple[Any, Any]) -> Any:
        if symbol in _BINARY:
            return getattr(operator, _BINARY[symbol])(*pair)
        return getattr(operator, f"i{_BINARY[symbol[:-1]].rstrip('_')}")(*pair)

    def do_compare(self, name: str, pair: tuple[Any, Any]) -> Any:
        return getattr(operator, name)(*pair)

    def do_unary(self, name: str, o: Any) -> Any:
        return getattr(operator, name)(o)

    def do_truth(self, o: Any) -> bool:
        return bool(o)

    def do_truth_kept(self, o: Any) -> Any:
        return o

    # iteration, managers, text, patterns
    def do_iter(self, o: Any) -> Any:
        return o

    def do_mapping(self, o: Any) -> Any:
        return o

    def do_mapping_into(self, pair: tuple[Any, Any]) -> Any:
        return pair[0]

    def do_keyed_in(self, pair: tuple[Any, Any]) -> Any:
        hash(pair[0])
        return pair[0]

    def do_manager(self, o: Any) -> Any:
        return o

    def do_format(self, o: Any) -> Any:
        return o

    def do_get_len(self, o: Any) -> None:
        len(o)

    def do_caught_of_group(self, pair: tuple[Any, Any]) -> None:
        assert isinstance(pair[0], BaseException)

    def do_match_keys(self, pair: tuple[Any, Any]) -> None:
        assert type(pair[1]) is tuple

    def do_match_class(self, positional: int, parts: tuple[Any, Any, Any]) -> None:
        assert type(positional) is int and type(parts[2]) is tuple
