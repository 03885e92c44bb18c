"""Which operation an expression is, by its syntax: what waited, where it is known that this expression did.

As in `source`, files are read with `ast` and never executed. Names prove little by themselves; here they say which of
the things that PyTorch does, and of which it is known that one made the CPU wait, stood at that place.
"""

from __future__ import annotations

import ast
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from nsys_sync.analysis.source import MAX_CHARACTERS
from nsys_sync.analysis.source_rules import (
    COMPARING_CALLS,
    CONTROL,
    NUMBER_CALLS,
    dotted_name,
    is_plain,
    shown_name,
    truth_leaves,
)

Span = tuple[int, int, int, int]
"""Line, column, end line, end column; columns count bytes of UTF-8."""

CALLS = {
    "item": "scalar-read",
    "tolist": "tolist",
    "cpu": "to-cpu",
    "numpy": "numpy",
    "cuda": "upload",
    **dict.fromkeys(("nonzero", "argwhere"), "nonzero"),
    "masked_select": "masked-select",
    **dict.fromkeys(("unique", "unique_consecutive", "_unique2", "unique_dim"), "unique"),
    "repeat_interleave": "repeat-interleave",
    **dict.fromkeys(("equal", "allclose"), "compare"),
    "is_nonzero": "is-nonzero",
    "new_tensor": "construct",
}
"""Functions and methods of PyTorch that can wait for one reason only, by their last name."""
BUILTINS = {
    **dict.fromkeys(NUMBER_CALLS, "scalar-read"),
    "bool": "truth-value",
    **dict.fromkeys(COMPARING_CALLS, "python-max-min"),
    "range": "gpu-index",
}
NAMESPACES = frozenset({"torch", "nn", "F"})
FACTORIES = frozenset({"torch.tensor", "torch.as_tensor"})


@dataclass(frozen=True)
class Operation:
    """What the expression does: a cause, None where the syntax does not tell, and how it is shown."""

    cause: str | None
    shown: str


class Expressions:
    """Those of one parsed file."""

    def __init__(self, tree: ast.Module) -> None:
        self._ending_at: dict[tuple[int, int], list[ast.AST]] = defaultdict(list)
        self._on_line: dict[int, list[ast.AST]] = defaultdict(list)
        self._through: dict[ast.AST, str] = {}
        self._values: dict[str, list[ast.expr]] = defaultdict(list)
        self._bindings: dict[str, int] = defaultdict(int)
        for node in ast.walk(tree):
            self._remember(node)

    @classmethod
    def parse(cls, text: str) -> Expressions | None:
        """None for what is no Python that the running interpreter can parse, and for what is too long."""
        if len(text) > MAX_CHARACTERS:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return cls(ast.parse(text))
        # The parser reports exhausted stacks as either of the last two.
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def operation(self, line: int, span: Span | None) -> Operation | None:
        """What the expression at the span does. Without a span, what the line's only known operation does, if it has
        just one.
        """
        if span is not None:
            found = list(self._operations(self._at(span), is_exact=True))
            return next((one for one in found if one.cause), found[0] if found else None)
        known = {one for one in self._operations(self._on_line[line], is_exact=False) if one.cause}
        return known.pop() if len(known) == 1 else None

    def _remember(self, node: ast.AST) -> None:
        if isinstance(node, (ast.expr, ast.Assert)) and node.end_lineno is not None:
            self._ending_at[node.end_lineno, node.end_col_offset or 0].append(node)
            self._on_line[_line_of(node)].append(node)
        for (kind, field), through in CONTROL.items():
            if isinstance(node, kind) and through != "match":
                value = getattr(node, field)
                for test in value if isinstance(value, list) else [value]:
                    self._tests(test, through)
                if isinstance(node, (ast.IfExp, ast.Assert)):
                    self._through[node] = through  # where Python 3.11 says that it jumps
        if isinstance(node, ast.BoolOp):
            self._through.setdefault(node, "and/or")
            for value in node.values[:-1]:
                self._through.setdefault(value, "and/or")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._through.setdefault(node, "not")
            self._through.setdefault(node.operand, "not")
        if isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
            for target in node.targets:
                assert isinstance(target, ast.Name)
                self._values[target.id].append(node.value)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            self._bindings[node.id] += 1
        elif isinstance(node, ast.arg):
            self._bindings[node.arg] += 1

    def _tests(self, test: ast.expr | None, through: str) -> None:
        for leaf in truth_leaves(test) if test else ():
            self._through[leaf] = through

    def _at(self, span: Span) -> list[ast.AST]:
        """The nodes of exactly this span. Of a call in a chain of several lines, Python gives the last name's line."""
        line, column, end_line, end_column = span
        found: list[ast.AST] = []
        for node in self._ending_at[end_line, end_column]:
            assert isinstance(node, (ast.expr, ast.stmt))
            if (node.lineno, node.col_offset) == (line, column) or (
                isinstance(node, ast.Call) and node.lineno != line and _line_of(node) == line
            ):
                found.append(node)
        return found

    def _operations(self, nodes: list[ast.AST], *, is_exact: bool) -> Iterator[Operation]:
        for node in nodes:
            if isinstance(node, ast.Call):
                yield self._call(node)
            elif isinstance(node, ast.Subscript):
                yield self._subscript(node)
        for node in nodes:
            through = self._through.get(node)
            if through is not None and (is_exact or not is_plain(node)):
                yield Operation("truth-value", through)

    def _call(self, call: ast.Call) -> Operation:
        name = _name_of(call.func)
        last = name.rpartition(".")[2]
        is_method = "." in name and name.partition(".")[0] not in NAMESPACES
        shown = f".{last}()" if is_method else shown_name(name)
        if name in BUILTINS:
            cause: str | None = BUILTINS[name]
        elif name in FACTORIES:
            cause = "construct" if any(keyword.arg == "device" for keyword in call.keywords) else None
        elif name.startswith("torch.linalg."):
            cause = "linalg-check"
        elif last == "where":
            cause = "nonzero" if len(call.args) == 1 and not call.keywords else None
        elif last == "to" and is_method:
            cause = self._direction(call)
        else:
            cause = CALLS.get(last) if "." in name else None
        return Operation(cause, shown)

    def _direction(self, call: ast.Call) -> str | None:
        """Of `.to(…)`: `upload`, `to-cpu`, or None where the line does not tell."""
        target = next((k.value for k in call.keywords if k.arg == "device"), call.args[0] if call.args else None)
        if target is None:
            return None
        values = self._only_values(target)
        names = {_device_named(value) for value in values}
        if names == {"cuda"}:
            return "upload"
        return "to-cpu" if names == {"cpu"} else None

    def _only_values(self, node: ast.expr) -> list[ast.expr]:
        """What a plain name stands for wherever the file has it: all that is assigned to it, or nothing if it is bound
        in other ways too. Any other expression stands for itself.
        """
        if not isinstance(node, ast.Name):
            return [node]
        values = self._values.get(node.id, [])
        return values if len(values) == self._bindings[node.id] else []

    def _subscript(self, node: ast.Subscript) -> Operation:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        open_parts = [part for part in parts if not isinstance(part, ast.Slice) and not _is_literal(part)]
        bounds = [
            bound
            for part in parts
            if isinstance(part, ast.Slice)
            for bound in (part.lower, part.upper, part.step)
            if bound is not None and not _is_literal(bound)
        ]
        shown = ast.unparse(node)
        shown = shown if len(shown) <= 60 else "[…]"
        is_load = isinstance(node.ctx, ast.Load)
        cause = None
        if bounds and not open_parts:
            cause = "gpu-index"
        elif open_parts and not bounds and all(self._is_mask(part) for part in open_parts):
            cause = "mask-index" if is_load else "mask-assign"
        elif not bounds and open_parts and all(_is_list_of_literals(part) for part in open_parts):
            cause = "cpu-index" if is_load else None
        return Operation(cause, shown)

    def _is_mask(self, node: ast.expr) -> bool:
        values = self._only_values(node)
        return bool(values) and all(_compares(value) for value in values)


def _name_of(function: ast.expr) -> str:
    """As `dotted_name`, but of a method only its own name where it is called on anything else than a name."""
    owner = function
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    if isinstance(function, ast.Attribute) and not isinstance(owner, ast.Name):
        return f".{function.attr}"
    return dotted_name(function)


def _line_of(node: ast.AST) -> int:
    """The line that a frame at this node is at: of a method call, the one with the method's name."""
    assert isinstance(node, (ast.expr, ast.stmt))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.end_lineno or node.lineno
    return node.lineno


def _device_named(value: ast.expr) -> str | None:
    """`cuda` or `cpu`, where that is the device it names. `"cuda" if … else "cpu"` is `cuda`, as something waited."""
    named = {
        constant.value.partition(":")[0]
        for constant in ast.walk(value)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    }
    is_device = isinstance(value, (ast.Constant, ast.IfExp, ast.JoinedStr)) or (
        isinstance(value, ast.Call) and dotted_name(value.func) in {"torch.device", "device"}
    )
    if not is_device or not named <= {"cuda", "cpu"}:
        return None
    return "cuda" if "cuda" in named else "cpu" if "cpu" in named else None


def _is_literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant))


def _is_list_of_literals(node: ast.expr) -> bool:
    return isinstance(node, ast.List) and all(_is_literal(element) for element in node.elts)


def _compares(node: ast.expr) -> bool:
    """Whether the value is a mask by its syntax: comparisons, and `~`, `&` and `|` of them."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Invert) and _compares(node.operand)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.BitAnd, ast.BitOr)) and _compares(node.left) and _compares(node.right)
    return isinstance(node, ast.Compare) and not any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops)
