"""What stands in instrumented code in place of each instruction.

`LOAD_ATTR name` with `[o]` on the stack becomes `LOAD_CONST R; SWAP 2; BINARY_SUBSCR`: `R[o]` does
the read. Several operands are packed into a tuple first. Where a call has a slot that holds NULL,
it holds `OPS["call"]` instead, so that `CALL n` calls that with the callable and its arguments: no
stack is analysed, and no number of arguments changes.
"""

from __future__ import annotations

import dis
import opcode
import re
from collections.abc import Callable
from types import CodeType
from typing import Any

from subclass_trace.state.bytecode import (
    JUMPS,
    NUMBER,
    VERSION,
    Uninstrumentable,
    instruction,
    unit,
)
from subclass_trace.state.readers import OPS, reader

#: most that a replacement holds above what the instruction did: three copies, and one
PUSHES = 4

#: What stays as it is, of all versions. What is in no table is refused: it must be looked at first.
KEPT = frozenset(
    (
        # the stack, constants and locals
        *("CACHE", "NOP", "RESUME", "NOT_TAKEN", "GEN_START", "POP_TOP", "COPY", "SWAP", "DUP_TOP"),
        *("DUP_TOP_TWO", "ROT_TWO", "ROT_THREE", "ROT_FOUR", "ROT_N", "LOAD_CONST"),
        *("LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT", "LOAD_FAST", "LOAD_FAST_CHECK"),
        *("LOAD_FAST_AND_CLEAR", "LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST"),
        *("LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST", "DELETE_FAST", "STORE_FAST_LOAD_FAST"),
        *("STORE_FAST_STORE_FAST", "MAKE_CELL", "LOAD_CLOSURE", "COPY_FREE_VARS", "LOAD_LOCALS"),
        # functions, classes, and what is made of operands
        *("LOAD_BUILD_CLASS", "LOAD_ASSERTION_ERROR", "MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"),
        *("SETUP_ANNOTATIONS", "KW_NAMES", "CALL_KW", "CALL_INTRINSIC_2", "BUILD_LIST"),
        *("BUILD_TUPLE", "BUILD_SLICE", "BUILD_STRING", "BUILD_CONST_KEY_MAP"),
        *("BUILD_INTERPOLATION", "BUILD_TEMPLATE", "LIST_APPEND", "LIST_TO_TUPLE"),
        *("IMPORT_NAME", "PRINT_EXPR", "MATCH_MAPPING", "MATCH_SEQUENCE"),
        # the way through the code
        *("RETURN_CONST", "RETURN_VALUE", "RETURN_GENERATOR", "YIELD_VALUE", "YIELD_FROM"),
        *("INTERPRETER_EXIT", "EXIT_INIT_CHECK", "END_FOR", "END_SEND", "POP_ITER", "POP_BLOCK"),
        *("PUSH_EXC_INFO", "POP_EXCEPT", "PREP_RERAISE_STAR", "RERAISE", "WITH_EXCEPT_START"),
        *("CLEANUP_THROW", "ASYNC_GEN_WRAP", "GET_AWAITABLE", "GET_AITER", "GET_ANEXT"),
        *("BEFORE_ASYNC_WITH", "END_ASYNC_FOR"),
    )
)

SUBSCRIPT_OPERATOR = 26  # of BINARY_OP, from 3.14 on
if "BINARY_SUBSCR" in NUMBER:
    SUBSCRIPT = instruction("BINARY_SUBSCR")
else:
    SUBSCRIPT = instruction("BINARY_OP", SUBSCRIPT_OPERATOR)
if "SWAP" in NUMBER:
    SWAP = instruction("SWAP", 2)
else:
    SWAP = instruction("ROT_TWO")
POP = instruction("POP_TOP")
COPY = instruction("COPY", 1) if "COPY" in NUMBER else instruction("DUP_TOP")
ASK = SWAP + SUBSCRIPT
LOAD_CONST = NUMBER["LOAD_CONST"]
LOAD_CELL = NUMBER["LOAD_CLOSURE" if VERSION < (3, 13) else "LOAD_FAST"]
HAS_SLOT = VERSION >= (3, 11)  # a call has a slot that holds NULL
NO_ARGUMENTS = unit(NUMBER[{10: "CALL_FUNCTION", 11: "PRECALL"}.get(VERSION[1], "CALL")], 0)
_INTRINSICS: Any = getattr(opcode, "_intrinsic_1_descs", getattr(dis, "_intrinsic_1_descs", ()))
#: of COMPARE_OP: by how much its argument is shifted, and the bit that asks for a truth value
COMPARE_SHIFT = {12: 4, 13: 5, 14: 5}.get(VERSION[1], 0)
AS_TRUTH = 16 if VERSION >= (3, 13) else 0


class Sheet:
    """A code object while it is rewritten.

    Attributes:
        constants: what is added to its constants.
        end: where the instruction at hand ends.
        first_free: the index of the first variable that is a function's around this one.
        super_end: where the call of a `super()` without arguments begins, which is done already.
        null_end: where a PUSH_NULL ends that stands for no keyword arguments.
        special_end: where the load of a method by LOAD_SPECIAL ends.
    """

    def __init__(self, code: CodeType) -> None:
        """Raises Uninstrumentable where the variables have another order than the compiler's."""
        self.code, self.units, self.names = code, code.co_code, code.co_names
        self.constants: list[Any] = []
        self._loads: dict[int, bytes] = {}
        self.end = 0
        self.super_end = self.null_end = self.special_end = -1
        cells, free = code.co_cellvars, code.co_freevars
        if VERSION < (3, 11):
            self.first_free = len(cells)
            return
        self.first_free = code.co_nlocals + sum(name not in code.co_varnames for name in cells)
        name_of: Callable[[int], str] = code._varname_from_oparg  # type: ignore[attr-defined]
        if free and name_of(self.first_free) != free[0]:
            raise Uninstrumentable("an order of variables that is not the compiler's")

    def constant(self, value: Any) -> bytes:
        """Pushes `value`."""
        load = self._loads.get(id(value))
        if load is None:
            index = len(self.code.co_consts) + len(self.constants)
            load = self._loads[id(value)] = unit(LOAD_CONST, index)
            self.constants.append(value)
        return load

    def ask(self, operation: str, static: Any = None) -> bytes:
        """[operand] becomes its result."""
        return self.constant(reader(operation, static)) + ASK

    def ask_for(self, operation: str, name: str) -> bytes:
        """[] becomes the result for `name`."""
        return self.constant(reader(operation)) + self.constant(name) + SUBSCRIPT

    def call_slot(self) -> bytes:
        """[] becomes [call]: what stands before a callable."""
        return self.constant(OPS["call"])


# A function of the sheet, the argument of an instruction and its bytes: what stands there instead;
# None: it stays. Of jumps: what is put before them.
Does = Callable[[Sheet, int, bytes], bytes | None]


def pack(number: int) -> bytes:
    """Operands become one."""
    return instruction("BUILD_TUPLE", number) if number > 1 else b""


def _load_attr(s: Sheet, argument: int, was: bytes) -> bytes:
    if VERSION < (3, 12):
        return s.ask("attr", s.names[argument])
    got = s.ask("attr", s.names[argument >> 1])
    return got + s.call_slot() + SWAP if argument & 1 else got


def _load_method(s: Sheet, argument: int, was: bytes) -> bytes:
    got = s.ask("attr", s.names[argument])
    return got + s.call_slot() + SWAP if HAS_SLOT else got


def _load_super_attr(s: Sheet, argument: int, was: bytes) -> bytes:
    static = s.names[argument >> 2], bool(argument & 2)
    got = pack(3) + s.ask("attribute_of_super", static)
    return got + s.call_slot() + SWAP if argument & 1 else got


def _load_global(s: Sheet, argument: int, was: bytes) -> bytes:
    code, name = s.code, s.names[argument >> 1 if HAS_SLOT else argument]
    got = s.ask_for("global", name)
    is_method_of_class = "__class__" in code.co_freevars and code.co_argcount > 0
    has_slot = HAS_SLOT and bool(argument & 1)
    is_called = has_slot is HAS_SLOT and s.units[s.end : s.end + 2] == NO_ARGUMENTS
    if name == "super" and is_called and is_method_of_class:
        s.super_end = s.end
        return got + _class_and_first(s) + pack(3) + s.ask("bare_super")
    return s.call_slot() + got if has_slot else got


def _class_and_first(s: Sheet) -> bytes:
    """What `super()` takes from the frame: the cell of the class, and the first argument."""
    code = s.code
    first = code.co_varnames[0]
    if first not in code.co_cellvars:
        load = unit(NUMBER["LOAD_FAST"], 0)
    else:
        load = unit(NUMBER["LOAD_DEREF"], code.co_cellvars.index(first) if VERSION < (3, 11) else 0)
    cell = unit(LOAD_CELL, s.first_free + code.co_freevars.index("__class__"))
    return cell + s.ask("cell", "__class__") + load


def _call(s: Sheet, argument: int, was: bytes) -> bytes | None:
    """Without arguments: [call, f], or [f, argument] of decorators and comprehensions."""
    begin = s.end - len(was)
    if argument or begin == s.special_end:
        return None
    return b"" if begin == s.super_end else pack(2) + s.ask("call0")


def _call_of_311(s: Sheet, argument: int, was: bytes) -> bytes | None:
    """A call without arguments went with its PRECALL."""
    return None if argument else b""


def _call_of_310(s: Sheet, argument: int, was: bytes) -> bytes:
    if s.end - len(was) == s.super_end:
        return b""
    return instruction("BUILD_TUPLE", argument + 1) + s.ask("call_tuple")


def _call_kw_of_310(s: Sheet, argument: int, was: bytes) -> bytes:
    return instruction("BUILD_TUPLE", argument + 2) + s.ask("call_kw")


def _push_null(s: Sheet, argument: int, was: bytes) -> bytes:
    if VERSION < (3, 13):
        return s.call_slot()
    if VERSION >= (3, 14) and s.units[s.end] == NUMBER["CALL_FUNCTION_EX"]:
        s.null_end = s.end
        return b""
    return s.call_slot() + SWAP


def _call_ex(s: Sheet, argument: int, was: bytes) -> bytes:
    if VERSION < (3, 14):
        has_keywords = bool(argument & 1)
    else:
        has_keywords = s.end - len(was) != s.null_end
    got = pack(3 if has_keywords else 2) + s.ask("call_ex")
    return got + SWAP + POP if HAS_SLOT else got


def _load_special(s: Sheet, argument: int, was: bytes) -> bytes | None:
    """A `with` takes `__exit__` of a copy of its manager, then calls `__enter__` of that."""
    if dis._special_method_names[argument] != "__exit__":  # type: ignore[attr-defined]
        s.special_end = s.end
        return None
    return POP + s.ask("manager") + COPY + was


def _load_deref(s: Sheet, argument: int, was: bytes) -> bytes | None:
    if argument < s.first_free:
        return None
    name = s.code.co_freevars[argument - s.first_free]
    return unit(LOAD_CELL, argument) + s.ask("cell", name)


def _class_deref(s: Sheet, argument: int, was: bytes) -> bytes | None:
    """In the body of a class: its own name, or else the cell's of a function around it."""
    if argument < s.first_free:
        return None
    name = s.code.co_freevars[argument - s.first_free]
    return unit(LOAD_CELL, argument) + s.ask("of_body_or_cell", name)


def _from_dict_or_deref(s: Sheet, argument: int, was: bytes) -> bytes | None:
    if argument < s.first_free:
        return None
    name = s.code.co_freevars[argument - s.first_free]
    return unit(LOAD_CELL, argument) + pack(2) + s.ask("of_class_or_cell", name)


def _store_deref(s: Sheet, argument: int, was: bytes) -> bytes | None:
    if argument < s.first_free:
        return None
    return unit(LOAD_CELL, argument) + s.ask("write_cell") + POP + was


def _compare(s: Sheet, argument: int, was: bytes) -> bytes:
    name = ("lt", "le", "eq", "ne", "gt", "ge")[argument >> COMPARE_SHIFT]
    got = pack(2) + s.ask("compare", name)
    return got + s.ask("truth") if argument & AS_TRUTH else got


def _binary(s: Sheet, argument: int, was: bytes) -> bytes:
    name, symbol = dis._nb_ops[argument]  # type: ignore[attr-defined]
    return pack(2) + (s.ask("item") if name == "NB_SUBSCR" else s.ask("binary", symbol))


def _intrinsic(s: Sheet, argument: int, was: bytes) -> bytes | None:
    name = _INTRINSICS[argument]
    if name == "INTRINSIC_IMPORT_STAR":
        return _import_star(s, argument, was)
    return s.ask("unary", "pos") if name == "INTRINSIC_UNARY_POSITIVE" else None


def _format_value(s: Sheet, argument: int, was: bytes) -> bytes:
    """Two bits say how the value is converted, one that a format stands on the stack above it."""
    convert = (None, str, repr, ascii)[argument & 3]
    got = s.ask("format") if convert is None else s.ask("converted", convert)
    if not argument & 4:
        return got + instruction("FORMAT_VALUE", 0)
    return SWAP + got + SWAP + instruction("FORMAT_VALUE", 4)


def _convert_value(s: Sheet, argument: int, was: bytes) -> bytes:
    return s.ask("converted", (None, str, repr, ascii)[argument])


def _raise(s: Sheet, argument: int, was: bytes) -> bytes | None:
    if argument == 2:
        return SWAP + s.ask("raised") + SWAP + was
    return s.ask("raised") + was if argument else None


def _build_set(s: Sheet, argument: int, was: bytes) -> bytes | None:
    return instruction("BUILD_TUPLE", argument) + s.ask("set_of") if argument else None


def _build_map(s: Sheet, argument: int, was: bytes) -> bytes | None:
    return instruction("BUILD_TUPLE", 2 * argument) + s.ask("dict_of") if argument else None


def _copy_without_keys(s: Sheet, argument: int, was: bytes) -> bytes:
    return instruction("DUP_TOP_TWO") + pack(2) + s.ask("dict_without") + SWAP + POP


def _with_container(operation: str, number: int) -> Does:
    """The operand, the lower one of two, is put into a container further down the stack; 3.10 has
    no instruction to get at that."""
    around = SWAP if number == 2 else b""

    def does(s: Sheet, argument: int, was: bytes) -> bytes:
        if HAS_SLOT:
            of = instruction("COPY", argument + number)
        else:
            of = s.constant(None)
        return around + of + pack(2) + s.ask(operation) + around + was

    return does


def _import_star(s: Sheet, argument: int, was: bytes) -> bytes:
    raise Uninstrumentable("import * writes names that no instruction tells")


def _with_copies(operation: str, number: int) -> Does:
    """Copies of the operands are asked about, then the instruction does its work."""
    if HAS_SLOT:
        return lambda s, argument, was: (
            instruction("COPY", number) * number
            + pack(number)
            + s.ask(operation, argument if number == 3 else None)
            + POP
            + was
        )
    # 3.10: the operands come back from a copy of the tuple, in reverse
    back = {2: SWAP, 3: instruction("ROT_THREE") + SWAP if "ROT_THREE" in NUMBER else b""}
    unpacked = instruction("UNPACK_SEQUENCE", number) + back.get(number, b"") if number > 1 else b""
    return lambda s, argument, was: (
        pack(number)
        + instruction("DUP_TOP")
        + s.ask(operation, argument if number == 3 else None)
        + POP
        + unpacked
        + was
    )


def _packed(number: int, operation: str, has_value: bool = True) -> Does:
    after = b"" if has_value else POP
    return lambda s, argument, was: pack(number) + s.ask(operation) + after


def _negated(operation: str) -> Does:
    return lambda s, argument, was: pack(2) + s.ask(operation, argument == 1)


def _on_top(operation: str) -> Does:
    """The operand on top becomes what is asked for it, then the instruction does its work."""
    return lambda s, argument, was: s.ask(operation) + was


def _instead(operation: str) -> Does:
    """The operand on top becomes what is asked for it: that is all, or a jump follows."""
    return lambda s, argument, was: s.ask(operation)


def _symbol(operation: str, symbol: str, operands: int) -> Does:
    return lambda s, argument, was: pack(operands) + s.ask(operation, symbol)


def _named(operation: str, before: bytes = b"", after: bytes = b"") -> Does:
    return lambda s, argument, was: before + s.ask(operation, s.names[argument]) + after


def _for_name(operation: str) -> Does:
    return lambda s, argument, was: s.ask_for(operation, s.names[argument]) + POP + was


def _kept(s: Sheet, argument: int, was: bytes) -> bytes | None:
    return None


def _nothing(s: Sheet, argument: int, was: bytes) -> bytes:
    """Before a jump that asks for nothing."""
    return b""


_OPERATORS = {
    "ADD": "+",
    "SUBTRACT": "-",
    "MULTIPLY": "*",
    "TRUE_DIVIDE": "/",
    "FLOOR_DIVIDE": "//",
    "MODULO": "%",
    "POWER": "**",
    "MATRIX_MULTIPLY": "@",
    "AND": "&",
    "OR": "|",
    "XOR": "^",
    "LSHIFT": "<<",
    "RSHIFT": ">>",
}

_BY_TRUTH = re.compile("POP_JUMP_(FORWARD_|BACKWARD_)?IF_(TRUE|FALSE)$")

REPLACED: dict[str, Does] = {
    **{name: _nothing for name in NUMBER if JUMPS[NUMBER[name]]},
    **{f"BINARY_{name}": _symbol("binary", sign, 2) for name, sign in _OPERATORS.items()},
    **{f"INPLACE_{name}": _symbol("binary", f"{sign}=", 2) for name, sign in _OPERATORS.items()},
    "BINARY_OP": _binary,
    "COMPARE_OP": _compare,
    "IS_OP": _negated("is"),
    "CONTAINS_OP": _negated("contains"),
    "UNARY_NEGATIVE": _symbol("unary", "neg", 1),
    "UNARY_POSITIVE": _symbol("unary", "pos", 1),
    "UNARY_INVERT": _symbol("unary", "invert", 1),
    "CALL_INTRINSIC_1": _intrinsic,
    # names and variables
    "LOAD_GLOBAL": _load_global,
    "STORE_GLOBAL": _for_name("write_global"),
    "DELETE_GLOBAL": _for_name("write_global"),
    "LOAD_NAME": _for_name("name"),
    "STORE_NAME": _for_name("name_written"),
    "DELETE_NAME": _for_name("name_written"),
    "LOAD_FROM_DICT_OR_GLOBALS": _named("of_class_or_global"),
    "LOAD_DEREF": _load_deref,
    "LOAD_CLASSDEREF": _class_deref,
    "LOAD_FROM_DICT_OR_DEREF": _from_dict_or_deref,
    "STORE_DEREF": _store_deref,
    "DELETE_DEREF": _store_deref,
    "IMPORT_FROM": _named("imported_from", COPY),
    "IMPORT_STAR": _import_star,
    # attributes and items
    "LOAD_ATTR": _load_attr,
    "LOAD_METHOD": _load_method,
    "LOAD_SUPER_ATTR": _load_super_attr,
    "STORE_ATTR": _named("set_attr", pack(2), POP),
    "DELETE_ATTR": _named("del_attr", b"", POP),
    "BINARY_SUBSCR": _packed(2, "item"),
    "STORE_SUBSCR": _packed(3, "set_item", has_value=False),
    "DELETE_SUBSCR": _packed(2, "del_item", has_value=False),
    "BINARY_SLICE": _packed(3, "slice"),
    "STORE_SLICE": _packed(4, "set_slice", has_value=False),
    # calls
    "PUSH_NULL": _push_null,
    "PRECALL": _call,
    "CALL": _call if VERSION >= (3, 12) else _call_of_311,
    "CALL_FUNCTION": _call_of_310,
    "CALL_METHOD": _call_of_310,
    "CALL_FUNCTION_KW": _call_kw_of_310,
    "CALL_FUNCTION_EX": _call_ex,
    # truth; from 3.13 on jumps have a truth value
    **{name: _instead("truth") for name in NUMBER if VERSION < (3, 13) and _BY_TRUTH.match(name)},
    "TO_BOOL": _instead("truth"),
    "UNARY_NOT": _on_top("truth") if VERSION < (3, 13) else _kept,
    # iteration, containers, managers
    "GET_ITER": _on_top("iter"),
    "GET_YIELD_FROM_ITER": _on_top("iter"),
    "UNPACK_SEQUENCE": _on_top("iter"),
    "UNPACK_EX": _on_top("iter"),
    "LIST_EXTEND": _on_top("iter"),
    "SET_UPDATE": _with_container("set_into", 1),
    "DICT_UPDATE": _with_container("mapping_into", 1),
    "DICT_MERGE": _with_container("mapping_into", 1),
    "BUILD_SET": _build_set,
    "BUILD_MAP": _build_map,
    "SET_ADD": _with_container("keyed_in", 1),
    "MAP_ADD": _with_container("keyed_in", 2),
    "BEFORE_WITH": _on_top("manager"),
    "SETUP_WITH": _instead("manager"),
    "LOAD_SPECIAL": _load_special,
    # text
    "FORMAT_VALUE": _format_value,
    "FORMAT_SIMPLE": _on_top("format"),
    "FORMAT_WITH_SPEC": lambda s, argument, was: SWAP + s.ask("format") + SWAP + was,
    "CONVERT_VALUE": _convert_value,
    # patterns and exceptions
    "GET_LEN": _with_copies("get_len", 1),
    "MATCH_KEYS": _with_copies("match_keys", 2),
    "MATCH_CLASS": _with_copies("match_class", 3),
    "COPY_DICT_WITHOUT_KEYS": _copy_without_keys,
    "RAISE_VARARGS": _raise,
    "CHECK_EXC_MATCH": _on_top("caught"),
    "CHECK_EG_MATCH": _with_copies("caught_of_group", 2),
    "JUMP_IF_NOT_EXC_MATCH": _instead("caught"),
    "JUMP_IF_TRUE_OR_POP": _instead("truth_kept"),
    "JUMP_IF_FALSE_OR_POP": _instead("truth_kept"),
}
