"""Generated programs: hypothesis draws them as source text, so that a shrunk failure can be read and run by hand.

A program is two functions, ``inputs(call)`` and ``program(*args)``. While it is drawn, each line also runs on dense
tensors, so that the shapes of all variables are known and lines that make no sense are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import wrappers
from hypothesis import strategies as s
from oracle import Inputs

KINDS = ("dense", "two", "nested", "scaled", "masked", "biased")
SIZES = ((3, 3), (2, 3), (4,), (2, 2, 2))

POINTWISE = ("{a} * 2", "{a} + 1", "{a}.sin()", "{a}.tanh()", "{a}.relu()", "-{a}", "{a}.exp()", "{a}.sigmoid()")
OTHER = ("{a}.clone()", "{a}.detach()", "{a}.contiguous()", "F.dropout({a}, 0.5, True)", "torch.zeros_like({a})")
BINARY = (
    "{a} + {b}",
    "{a} * {b}",
    "{a} - {b}",
    "torch.where({a} > 0, {a}, {b})",
    "torch.cat([{a}, {b}])",
    "torch.stack([{a}, {b}])",
)
REDUCE = ("{a}.sum()", "{a}.sum(0)", "{a}.mean(-1, keepdim=True)", "{a}.amax(0)", "{a}.cumsum(0)")
VIEWS = (
    "{a}.view(-1)",
    "{a}[0]",
    "{a}[1:]",
    "{a}[..., ::2]",
    "{a}.unsqueeze(0)",
    "{a}.transpose(0, -1)",
    "{a}.view_as({a})",
)
VIEWS += (
    "{a}.narrow(0, 0, 1)",
    "{a}.expand(2, *{a}.shape)",
    "{a}.diagonal()",
    "{a}.reshape(-1)",
    "{a}[:]",
    "{a}.squeeze()",
)
MULTI = ("{a}.split(1)", "{a}.unbind(0)", "{a}.chunk(2, -1)", "{a}.sort()")
INDEX = (
    "{a}[[0, 1]]",
    "{a}.index_select(0, torch.tensor([1, 0]))",
    "{a}.flip(0)",
    "torch.gather({a}, 0, torch.zeros_like({a}).long())",
)
INPLACE = (
    "{a}.add_(1)",
    "{a}.mul_(2)",
    "{a}.zero_()",
    "{a}[0] = 1",
    "{a}[0].mul_(3)",
    "{a}.relu_()",
    "{a}.sin_()",
    "{a}.view(-1)[1:].add_(2)",
)
INPLACE2 = ("{a}.copy_({b})", "{a}.add_({b})", "{a}.mul_({b})", "{a}[:1] = {b}[:1]", "{a}[0].copy_({b}[0])")
MASKED = ("{a} * 2", "{a} + 1", "{a}.sin()", "{a}.relu()", "-{a}", "{a}.clone()", "{a}.detach()", "{a}.sum()")


@dataclass
class Program:
    """A generated program; prints as what one would type to run it."""

    make_lines: tuple[str, ...]
    args: tuple[str, ...]
    roots: tuple[str, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    backward: tuple[int, ...] | None
    how: str

    @property
    def source(self) -> str:
        """The two functions."""
        body = "\n".join(f"    {line}" for line in self.lines)
        make = "\n".join(f"    {line}" for line in self.make_lines)
        return (
            f"def inputs(call):\n{make}\n    return Inputs(({', '.join(self.args)},), ({''.join(r + ', ' for r in self.roots)}))\n\n"
            f"def program({', '.join(f'x{k}' for k in range(len(self.args)))}):\n{body}\n    return ({', '.join(self.results)},)\n"
        )

    def functions(self) -> tuple[Any, Any]:
        """(program, inputs)."""
        names = {"torch": torch, "F": F, "Inputs": Inputs, **vars(wrappers)}
        exec(compile(self.source, "<generated>", "exec"), names)
        return names["program"], names["inputs"]

    def __repr__(self) -> str:
        back = "no backward" if self.backward is None else f"backward of outputs {list(self.backward)} by {self.how}"
        return f"\n{self.source}# {back}\n"


@s.composite
def programs(draw: Any, max_lines: int = 6) -> Program:
    """A program with its inputs."""
    kind = draw(s.sampled_from(KINDS))
    make, args, roots, env = _inputs(draw, kind)
    lines: list[str] = []
    for _ in range(draw(s.integers(1, max_lines))):
        line = _line(draw, kind, env, len(lines))
        guard = draw(s.integers(0, 9)) == 9
        if not _run(line, env):
            continue
        lines += ["with torch.no_grad():", "    " + line] if guard else [line]
    names = [n for n, v in env.items() if isinstance(v, torch.Tensor) and n[0] in "vx"]
    results = draw(s.lists(s.sampled_from(names[::-1]), min_size=1, max_size=3))
    backward = draw(s.none() | s.lists(s.integers(0, 2), min_size=1, max_size=2)) if roots else None
    how = draw(s.sampled_from(("tangent", "sum")))
    chosen = None if backward is None else tuple(backward)
    return Program(tuple(make), tuple(args), tuple(roots), tuple(lines), tuple(results), chosen, how)


def _inputs(draw: Any, kind: str) -> tuple[list[str], list[str], list[str], dict[str, Any]]:
    size = draw(s.sampled_from(SIZES))
    numbers = ", ".join(map(str, size))
    make, args, roots = [], [], []
    for k in range(draw(s.integers(1, 2))):
        this = kind if k == 0 or draw(s.booleans()) else "dense"
        grad = draw(s.sampled_from(("no", "leaf", "nonleaf")))
        suffix = "" if grad == "no" else ".requires_grad_()"
        make.append(f"w{k} = {this}({numbers}, seed={2 * k} + 10 * call){suffix}")
        if grad != "no":
            roots.append(f"w{k}")
        args.append(f"w{k}")
        if grad == "nonleaf":
            make.append(f"y{k} = w{k} * 1")
            args[-1] = f"y{k}"
    relation = draw(s.sampled_from(("none", "none", "same", "view", "overlap", "inner", "shared inner")))
    first = args[0]
    if relation == "same":
        args.append(first)
    elif relation == "view":
        args.append(f"{first}{draw(s.sampled_from(('[1:]', '.view(-1)', '.detach()', '.transpose(0, -1)')))}")
    elif relation == "overlap":
        make += [f"o = {kind}(6, seed=7 + 2 * call)"]
        args = ["o[:4]", "o[2:]"]
        roots = []
    elif relation in ("inner", "shared inner") and kind in ("two", "nested", "scaled"):
        make += ["i = dense(3, 3, seed=8 + 2 * call)"]
        second = "scale" if kind == "scaled" else "dense(3, 3, seed=9 + 2 * call)"
        make += ["scale = torch.tensor(2.0)"] if kind == "scaled" else []
        cls = "Scaled" if kind == "scaled" else "TwoTensor"
        args = [f"{cls}(i, {second})", "i" if relation == "inner" else f"{cls}(i, {second.replace('9', '11')})"]
        roots = []
    env: dict[str, Any] = {"torch": torch, "F": F}
    scope = {"torch": torch, "call": 0, **vars(wrappers)}
    scope |= dict.fromkeys(KINDS, wrappers.dense) | {"TwoTensor": lambda a, b: a, "Scaled": lambda a, b: a}
    exec("\n".join(make), scope)
    for k, a in enumerate(args):
        env[f"x{k}"] = eval(a, scope).detach().clone()
    return make, args, roots, env


def _line(draw: Any, kind: str, env: dict[str, Any], number: int) -> str:
    names = [n for n, v in env.items() if isinstance(v, torch.Tensor)]
    a = draw(s.sampled_from(names))
    if kind == "masked":
        groups = (MASKED, VIEWS[:8], INPLACE[:3], BINARY[:3])
    else:
        groups = (POINTWISE, OTHER, REDUCE, BINARY, VIEWS, VIEWS, INPLACE, INPLACE, INPLACE2, MULTI, INDEX, ("matmul",))
    text = draw(s.sampled_from(draw(s.sampled_from(groups))))
    b = draw(s.sampled_from(names)) if "{b}" in text or text == "matmul" else a
    if text == "matmul":
        fit = env[a].dim() == 2 and env[b].dim() > 0 and env[a].shape[-1] == env[b].shape[0]
        text = "{a} @ {b}" if fit else "{a} @ {a}.transpose(-2, -1)"
    expression = text.format(a=a, b=b)
    if text in INPLACE or text in INPLACE2:
        return expression
    if text in MULTI:
        try:
            count = len(eval(expression, dict(env)))
        except Exception:
            return expression
        return ", ".join(f"v{number}{c}" for c in "abcd"[:count]) + f" = {expression}" if count <= 4 else expression
    return f"v{number} = {expression}"


def _run(line: str, env: dict[str, Any]) -> bool:
    """Run a line on the dense stand-ins; False (and nothing changed) if it makes no sense."""
    try:
        exec(line, env)
    except Exception:
        return False
    return True
