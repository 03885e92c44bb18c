"""What the user's source says of a value that was read from the GPU: is it needed by the CPU, or only shown?

Source is read with `ast` and never executed. The answer for a line goes up from the expression that reads to the first
context that says something (a `print`, an `if`, a subscript), and follows a plain local variable to its later uses.
What the source does not tell stays open.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from nsys_sync.analysis.source_rules import (
    CLAUSES,
    COMPARING_CALLS,
    COMPREHENSIONS,
    CONTROL,
    DEFINITIONS,
    DOWNLOAD_FUNCTIONS,
    DOWNLOAD_METHODS,
    EFFECTS,
    INLINED_SCOPES,
    LOOPS,
    METADATA_METHODS,
    NAMING_CALLS,
    NEVER_USED,
    NUMBER_CALLS,
    OPEN_ENDS,
    PASSES_ON,
    PASSING_CALLS,
    POSITIONS,
    REFLECTION,
    SCOPES,
    SHAPE_ARGUMENTS,
    SHAPE_KEYWORDS,
    SIZE_KEYWORDS,
    TEXT_CALLS,
    TRIES,
    UNPLACED,
    arguments_of,
    binds,
    dotted_name,
    header_lines,
    header_nodes,
    holds_plain,
    is_formatting,
    is_on_cpu,
    is_plain,
    is_showing,
    is_text_literal,
    may_go_to_cpu,
    method_name,
    shown_name,
    target_names,
    truth_leaves,
)
from nsys_sync.model import Certainty, DependencyKind

Family = Literal["scalar", "list", "truth", "download", "print", "index", "other"]
"""What kind of operation to look for on the line, as the trace tells."""

TEXT_LINES = 3
TEXT_LENGTH = 160
LINE_LENGTH = 240
MAX_CHARACTERS = 1_000_000
MAX_EXPRESSION_DEPTH = 150
"""Functions below recurse over expressions: deeper ones (generated tables) would hit Python's own limit."""
MAX_FOLLOWED = 20
"""Assignments that one value is followed through."""


@dataclass(frozen=True, slots=True)
class SourceUse:
    """What the source says of one line.

    `text` are the lines of the innermost statement, joined, or the line alone where that is too long. `operation` is
    what on the line fits the family, such as `.item()`; None where nothing does, or several different ones. `through`
    is what asked for a truth value (`if`, `not`, `max`, …). `dependency` is `false`, `true`, or None where the source
    does not tell (`certainty` is then `open`; `reason` says how far it led). `evidence` is a sentence, empty where
    nothing was found.
    """

    text: str
    operation: str | None
    through: str | None
    dependency: DependencyKind | None
    reason: str
    certainty: Certainty
    evidence: str


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a node stands. `scope` is the code object that runs it, `fstring` the outermost f-string around it."""

    parent: ast.AST
    field: str
    scope: ast.AST
    fstring: ast.JoinedStr | None


@dataclass(frozen=True, slots=True)
class _Context:
    """What becomes of a value; the fields are as in `SourceUse`."""

    kind: DependencyKind | None
    reason: str
    certainty: Certainty
    evidence: str


@dataclass(frozen=True, slots=True)
class _Fit:
    """An expression that fits the family. `context` is given where the operation itself says what becomes of it."""

    node: ast.AST
    operation: str
    through: str | None = None
    is_explicit: bool = True
    context: _Context | None = None


def _control(line: int, through: str) -> _Context:
    return _Context("true", f"control flow: {through}", "certain", f"line {line} tests it ({through})")


def _open(reason: str = "the source does not tell", evidence: str = "") -> _Context:
    return _Context(None, reason, "open", evidence)


CARRIED_ALONG = _Context("false", NEVER_USED, "likely", "")
"""Back at an assignment that was followed already: no use beyond those found there."""


def _shown(line: int, where: str) -> _Context:
    reason = "the value is only printed" if where.rpartition(".")[2] == "print()" else "the value is only shown"
    return _Context("false", reason, "likely", f"line {line} passes it to {where}")


def _position(line: int, what: str) -> _Context:
    article = "an" if what == "index" else "a"
    return _Context("true", f"used as {article} {what}", "likely", f"line {line} uses it as {article} {what}")


def _combine(contexts: list[_Context]) -> _Context:
    """Of all uses of one value: needed if one needs it, not needed if none does."""
    for kind in ("true", None):
        for context in contexts:
            if context.kind == kind:
                return context
    return next((context for context in contexts if context.evidence), contexts[0])


class Source:
    """One parsed file."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self._lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._places: dict[ast.AST, _Place] = {}
        self._statements: dict[int, list[ast.AST]] = defaultdict(list)
        self._named: dict[str, list[ast.Name]] = defaultdict(list)
        self._bound: dict[ast.AST, set[str]] = defaultdict(set)
        self._declared: dict[ast.AST, set[str]] = defaultdict(set)
        self.depth = self._place(tree)

    @classmethod
    def parse(cls, text: str) -> Source | None:
        """None for what is no Python that the running interpreter can parse, and for what is too long or too deep."""
        if len(text) > MAX_CHARACTERS:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
        # The parser reports exhausted stacks as either of the last two.
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        source = cls(text, tree)
        return source if source.depth <= MAX_EXPRESSION_DEPTH else None

    def use(self, function: str, line: int, family: Family) -> SourceUse | None:
        """What is done on `line` by the code object named `function`; None if that code is not on that line."""
        statements = self._statements.get(line, [])
        nodes = [
            node
            for statement in statements
            for node in (statement, *header_nodes(statement))
            if node in self._places and self._may_run(node, function)
        ]
        here = [node for node in nodes if line in self._exact_lines(node)]
        if not here:
            return None
        found = self._narrowed(list(self._fits(nodes, family)), line)
        return self._use(found, self._text(statements, line))

    def use_of_result(self, function: str, line: int, callee: str) -> SourceUse | None:
        """What `function` does on `line` with what a call of `callee` there returns; None if there is no such call."""
        statements = self._statements.get(line, [])
        calls = [
            _Fit(node, f"{callee}()")
            for statement in statements
            for node in (statement, *header_nodes(statement))
            if node in self._places and self._may_run(node, function)
            if isinstance(node, ast.Call) and dotted_name(node.func).rpartition(".")[2] == callee
        ]
        found = self._narrowed(calls, line)
        return self._use(found, self._text(statements, line)) if found else None

    def _use(self, found: list[_Fit], text: str) -> SourceUse:
        contexts = [fit.context or self._context(fit.node, set()) for fit in found]
        operations = {fit.operation for fit in found}
        throughs = {fit.through for fit in found}
        agreed = contexts[0] if contexts else _open()
        if len({context.kind for context in contexts}) > 1:
            agreed = _open("several reads on this line are used differently")
        elif any(context.certainty != "certain" for context in contexts) and agreed.kind:
            agreed = replace(agreed, certainty="likely")
        return SourceUse(
            text=text,
            operation=operations.pop() if len(operations) == 1 else None,
            through=throughs.pop() if len(throughs) == 1 else None,
            dependency=agreed.kind,
            reason=agreed.reason,
            certainty=agreed.certainty,
            evidence=agreed.evidence,
        )

    # Where things are

    def _place(self, tree: ast.Module) -> int:
        """Find the place of every node; returns the depth of the deepest expression."""
        deepest = 0
        pending: list[tuple[ast.AST, ast.AST, ast.JoinedStr | None, int]] = [(tree, tree, None, 0)]
        while pending:
            node, scope, fstring, depth = pending.pop()
            deepest = max(deepest, depth)
            self._remember(node, scope)
            fstring = fstring or (node if isinstance(node, ast.JoinedStr) else None)
            for field, value in ast.iter_fields(node):
                for child in value if isinstance(value, list) else (value,):
                    if not isinstance(child, ast.AST) or isinstance(child, UNPLACED):
                        continue
                    inner = node if self._runs_inside(node, field) else scope
                    if isinstance(node, ast.comprehension) and field == "iter":
                        owner = self._places[node].parent
                        is_first = isinstance(owner, COMPREHENSIONS) and owner.generators[0] is node
                        inner = self._places[owner].scope if is_first else scope
                    self._places[child] = _Place(node, field, inner, fstring)
                    pending.append((child, inner, fstring, 0 if isinstance(child, CLAUSES) else depth + 1))
        return deepest

    @staticmethod
    def _runs_inside(node: ast.AST, field: str) -> bool:
        """Whether a part of a scope runs in its code object: decorators, defaults and bases run outside."""
        if isinstance(node, (*DEFINITIONS, ast.Lambda)):
            return field == "body"
        return isinstance(node, (ast.Module, *COMPREHENSIONS))

    def _remember(self, node: ast.AST, scope: ast.AST) -> None:
        if isinstance(node, CLAUSES):
            for line in header_lines(node):
                self._statements[line].append(node)
        if isinstance(node, ast.Name):
            self._named[node.id].append(node)
            if isinstance(node.ctx, ast.Store):
                is_walrus = isinstance(self._places[node].parent, ast.NamedExpr)
                self._bound[self._variables_of(scope) if is_walrus else scope].add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            self._declared[scope].update(node.names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            self._bound[node].update(part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg))

    def _variables_of(self, scope: ast.AST) -> ast.AST:
        """The function (or module, class) whose variables a walrus in `scope` binds."""
        while isinstance(scope, COMPREHENSIONS):
            scope = self._places[scope].scope
        return scope

    def _owner(self, name: ast.Name) -> ast.AST | None:
        """The code object whose variable it is; None for what no code here binds."""
        own = self._places[name].scope
        scope = own
        while True:
            # Variables of a class are seen in its own body only.
            if name.id in self._bound[scope] and (scope is own or not isinstance(scope, ast.ClassDef)):
                return scope
            if isinstance(scope, ast.Module):
                return None
            scope = self._places[scope].scope

    def _frame_names(self, scope: ast.AST) -> set[str]:
        """Names that a frame running this code may have, whatever the Python version."""
        names = {scope.name if isinstance(scope, DEFINITIONS) else SCOPES[type(scope)]}
        while type(scope) in INLINED_SCOPES:
            scope = self._places[scope].scope
            names.add(scope.name if isinstance(scope, DEFINITIONS) else SCOPES[type(scope)])
        return names

    def _may_run(self, node: ast.AST, function: str) -> bool:
        """Whether a frame of that name may be at the node. Comprehensions and lambdas begin where they stand."""
        is_own_scope = isinstance(node, (*COMPREHENSIONS, ast.Lambda)) and function in self._frame_names(node)
        return is_own_scope or function in self._frame_names(self._places[node].scope)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        """First and last line. Inside f-strings `ast` is not to be trusted before Python 3.12: the whole string."""
        located = self._places[node].fstring or node
        first = getattr(located, "lineno", 0)
        return first, getattr(located, "end_lineno", None) or first

    def _exact_lines(self, node: ast.AST) -> Iterable[int]:
        """Lines that a frame running just this node may be at: where it starts, or where its method's name is."""
        first, last = self._span(node)
        if self._places[node].fstring or isinstance(node, ast.JoinedStr):
            return range(first, last + 1)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return (node.func.end_lineno or first,)
        return (first, last) if isinstance(node, ast.Attribute) else (first,)

    def _line(self, node: ast.AST) -> int:
        """The line to name in a sentence."""
        return self._span(node)[0] if self._places[node].fstring else max(self._exact_lines(node))

    def _text(self, statements: list[ast.AST], line: int) -> str:
        alone = self._lines[line - 1].strip()
        if len(alone) > LINE_LENGTH:
            alone = f"{alone[:LINE_LENGTH]}…"
        if len(statements) != 1:
            return alone
        first = last = line
        while line - first < TEXT_LINES and self._statements.get(first - 1) == statements:
            first -= 1
        while last - line < TEXT_LINES and self._statements.get(last + 1) == statements:
            last += 1
        lines = [part.strip() for part in self._lines[first - 1 : last]]
        if len(lines) > TEXT_LINES or any("#" in part for part in lines[:-1]):
            return alone
        joined = " ".join(part.removesuffix("\\").rstrip() for part in lines if part)
        joined = re.sub(r"(?<=[(\[{]) | (?=[)\]}.])", "", joined) if len(lines) > 1 else joined
        return joined if len(joined) <= TEXT_LENGTH else alone

    # What fits the family

    def _narrowed(self, fits: list[_Fit], line: int) -> list[_Fit]:
        """The fits that are meant: reads before mere formatting, those at the line before those around it."""
        for is_explicit in (True, False):
            alike = [fit for fit in fits if fit.is_explicit == is_explicit]
            exact = [fit for fit in alike if line in self._exact_lines(fit.node)]
            around = [fit for fit in alike if self._span(fit.node)[0] <= line <= self._span(fit.node)[1]]
            if exact or around:
                return exact or around
        return []

    def _fits(self, nodes: list[ast.AST], family: Family) -> Iterator[_Fit]:
        if family == "truth":
            yield from self._truth_fits(nodes)
        for node in nodes:
            if family == "scalar":
                yield from self._scalar_fits(node)
            elif family == "list" and method_name(node) == "tolist":
                yield _Fit(node, ".tolist()")
            elif family == "download" and isinstance(node, ast.Call):
                yield from self._download_fits(node)
            elif family == "print":
                yield from self._print_fits(node)
            elif family == "index" and isinstance(node, ast.Subscript):
                yield from self._index_fits(node)
            elif family == "other" and isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                name = dotted_name(node.value.func)
                if is_showing(name):
                    yield _Fit(node.value, shown_name(name), context=_shown(self._line(node.value), shown_name(name)))

    def _scalar_fits(self, node: ast.AST) -> Iterator[_Fit]:
        if isinstance(node, ast.Call):
            name = dotted_name(node.func)
            needs_number = (name in NUMBER_CALLS and len(node.args) == 1) or name.startswith("math.")
            if method_name(node) == "item" and not node.args:
                yield _Fit(node, ".item()")
            elif needs_number and not all(is_plain(argument) for argument in node.args):
                yield _Fit(node, f"{name}()")
            elif is_showing(name) and self._has_percent_template(node) and self._has_open_argument(node):
                context = _shown(self._line(node), shown_name(name))
                yield _Fit(node, shown_name(name), is_explicit=False, context=context)
        yield from self._formatting_fits(node)

    @staticmethod
    def _has_percent_template(call: ast.Call) -> bool:
        """`log.info("loss %.3f", loss)`"""
        template = call.args[0] if call.args else None
        return isinstance(template, ast.Constant) and isinstance(template.value, str) and "%" in template.value

    @staticmethod
    def _has_open_argument(call: ast.Call) -> bool:
        return not all(is_plain(argument) for argument in arguments_of(call))

    def _formatting_fits(self, node: ast.AST) -> Iterator[_Fit]:
        if isinstance(node, ast.FormattedValue) and not is_plain(node.value):
            yield _Fit(node, "f-string", is_explicit=False)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and is_text_literal(node.left):
            if not is_plain(node.right):
                yield _Fit(node.right, "%-format", is_explicit=False)
        elif isinstance(node, ast.Call) and is_formatting(node):
            value = next((argument for argument in arguments_of(node) if not is_plain(argument)), None)
            if value is not None:
                name = ".format()" if method_name(node) else "format()"
                yield _Fit(value, name, is_explicit=False)

    def _print_fits(self, node: ast.AST) -> Iterator[_Fit]:
        if isinstance(node, ast.Call) and self._has_open_argument(node):
            name = dotted_name(node.func)
            if is_showing(name):
                yield _Fit(node, shown_name(name), context=_shown(self._line(node), shown_name(name)))
            elif name in TEXT_CALLS:
                yield _Fit(node, f"{name}()")
        for fit in self._formatting_fits(node):
            yield replace(fit, is_explicit=True)

    def _download_fits(self, node: ast.Call) -> Iterator[_Fit]:
        method, name = method_name(node), dotted_name(node.func)
        if name in DOWNLOAD_FUNCTIONS:
            if not (node.args and is_on_cpu(node.args[0])):
                effect = _open("saved to a file", f"line {self._line(node)} saves it") if name in EFFECTS else None
                yield _Fit(node, f"{name}()", context=effect)
        elif method in DOWNLOAD_METHODS and isinstance(node.func, ast.Attribute) and not is_on_cpu(node.func.value):
            if method in {"to", "type"} and not may_go_to_cpu(node):
                return
            effect = _open("copied", f"line {self._line(node)} copies it") if method in EFFECTS else None
            chain, last = f".{method}()", node
            while (called := self._method_call_on(last)) and method_name(called) in DOWNLOAD_METHODS:
                chain, last = f"{chain}.{method_name(called)}()", called
            # The chain's last call has the value; the first one's line is where the download is.
            yield _Fit(node, chain, context=effect)

    def _method_call_on(self, node: ast.AST) -> ast.Call | None:
        attribute = self._places[node].parent
        if isinstance(attribute, ast.Attribute) and attribute.value is node:
            call = self._places[attribute].parent
            if isinstance(call, ast.Call) and call.func is attribute:
                return call
        return None

    def _index_fits(self, node: ast.Subscript) -> Iterator[_Fit]:
        if not any(isinstance(part, ast.Name) for part in ast.walk(node.slice)) or self._is_annotation(node):
            return
        line = self._line(node)
        first, last = self._span(node)
        encoded = self._lines[line - 1].encode("utf-8", "surrogatepass")
        shown = encoded[node.col_offset : node.end_col_offset].decode("utf-8", "replace") if first == last else ""
        operation = shown if 0 < len(shown) <= 60 and not self._places[node].fstring else "[…]"
        context = _open("used as an index", f"line {line} uses it as an index")
        top = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if any(isinstance(part, ast.Slice) and any(isinstance(n, ast.Name) for n in ast.walk(part)) for part in top):
            context = _position(line, "slice bound")
        elif isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Compare):
            reason = "a mask: the size of the result depends on the values"
            context = _Context("true", reason, "likely", f"line {line} indexes with a comparison")
        yield _Fit(node, operation, context=context)

    def _is_annotation(self, node: ast.AST) -> bool:
        while isinstance(node, ast.expr):
            if self._places[node].field in {"annotation", "returns"}:
                return True
            node = self._places[node].parent
        return False

    def _truth_fits(self, nodes: list[ast.AST]) -> Iterator[_Fit]:
        jumped_on: set[ast.AST] = set()
        tests: list[tuple[ast.expr, str]] = []
        for node in nodes:
            for (kind, field), through in CONTROL.items():
                if isinstance(node, kind) and through != "match":
                    value = getattr(node, field)
                    tests += [(test, through) for test in (value if isinstance(value, list) else [value]) if test]
        for test, _ in tests:
            pending = [test]
            while pending:
                part = pending.pop()
                jumped_on.add(part)
                if isinstance(part, ast.BoolOp):
                    pending += part.values
                elif isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
                    pending.append(part.operand)
        for node in nodes:
            if node in jumped_on:
                continue
            if isinstance(node, ast.BoolOp):
                tests += [(value, "and/or") for value in node.values[:-1]]
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                tests.append((node.operand, "not"))
        for test, through in tests:
            for leaf in truth_leaves(test):
                if not is_plain(leaf):
                    yield _Fit(leaf, through, through, context=_control(self._line(leaf), through))
        for node in nodes:
            if isinstance(node, ast.Compare):
                if any(isinstance(operator, (ast.In, ast.NotIn)) for operator in node.ops):
                    if not is_text_literal(node.left):
                        yield _Fit(node, "in", "in")
                elif len(node.ops) > 1 and not is_plain(node):
                    through = "chained comparison"
                    yield _Fit(node, through, through, context=_control(self._line(node), through))
            elif isinstance(node, ast.Call) and node.args:
                name = dotted_name(node.func)
                last = name.rpartition(".")[2]
                is_truth = name in COMPARING_CALLS or name == "bool" or last == "is_nonzero"
                if is_truth and not all(holds_plain(value) for value in node.args):
                    yield _Fit(node, f"{last}()", last)
            elif method_name(node) == "is_nonzero":
                yield _Fit(node, "is_nonzero()", "is_nonzero")

    # What becomes of the value

    def _context(self, read: ast.AST, followed: set[tuple[str, ast.AST]]) -> _Context:
        """Goes up from the expression to the first context that says something.

        `followed` are the assignments whose variables were followed already, and gains those followed here.
        """
        node = read
        is_text, is_called = isinstance(read, ast.FormattedValue), False
        element: int | None = None
        added_to: set[str] = set()
        while True:
            place = self._places[node]
            parent, field, line = place.parent, place.field, self._line(node)
            at = (type(parent), field)
            if at in CONTROL:
                found = _control(line, CONTROL[at])
                return replace(found, certainty="likely") if is_text or is_called else found
            if at in POSITIONS:
                return _position(line, POSITIONS[at])
            if isinstance(parent, ast.BoolOp) and node is not parent.values[-1]:
                return _control(line, "and/or")
            if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
                return _control(line, "not")
            if isinstance(parent, ast.FormattedValue) or self._is_percent_operand(node):
                is_text = True
            if called := self._method_call_on(node):
                if method_name(called) in METADATA_METHODS:
                    return _open("asked for its size", f"line {line} asks for its {method_name(called)}()")
                is_called, node = True, called
                continue
            if isinstance(parent, (ast.Call, ast.keyword)):
                call = parent if isinstance(parent, ast.Call) else self._places[parent].parent
                if not isinstance(call, ast.Call):
                    return _open()
                ended = self._passed(node, call, is_text)
                if ended:
                    return ended
                is_text = is_text or is_formatting(call)
                is_called, node = is_called or "." in dotted_name(call.func), call
                continue
            if at in PASSES_ON:
                if isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Add, ast.Sub)):
                    added_to |= {side.id for side in (parent.left, parent.right) if isinstance(side, ast.Name)}
                    added_to -= {node.id} if isinstance(node, ast.Name) else set()
                if isinstance(parent, (ast.Tuple, ast.List)):
                    element = next(i for i, part in enumerate(parent.elts) if part is node)
                node = parent
                continue
            if is_text:
                return self._text_shown(node)
            if at in OPEN_ENDS:
                return _open(OPEN_ENDS[at], f"on line {line} it is {OPEN_ENDS[at]}")
            if isinstance(parent, (ast.Assign, ast.AnnAssign)) and field == "value":
                targets: list[ast.expr] = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
                return self._assigned(node, parent, targets, element, added_to, followed)
            if isinstance(parent, ast.NamedExpr) and field == "value":
                after = self._follow(parent.target.id, parent, followed)
                around = self._context(parent, followed)
                return around if after.reason == NEVER_USED else _combine([after, around])
            if isinstance(parent, ast.AugAssign) and field == "value":
                if isinstance(node, (ast.List, ast.Tuple, ast.ListComp)):
                    return _open("kept in a list", f"line {line} adds it to a list")
                if isinstance(parent.op, (ast.Add, ast.Sub)):
                    return self._accumulated(line)
                return _open("stored", f"line {line} stores it")
            if isinstance(parent, ast.Raise) or (isinstance(parent, ast.Assert) and field == "msg"):
                return _shown(line, "an error message")
            if isinstance(parent, ast.Expr) and not is_called:
                return _Context("false", NEVER_USED, "likely", f"line {line} does nothing with it")
            return _open()

    @staticmethod
    def _accumulated(line: int) -> _Context:
        reason = "accumulated on the CPU: can be accumulated on the GPU"
        return _open(reason, f"line {line} adds it to a sum on the CPU")

    def _is_percent_operand(self, node: ast.AST) -> bool:
        parent = self._places[node].parent
        if not isinstance(parent, ast.BinOp) or parent.right is not node:
            return False
        return isinstance(parent.op, ast.Mod) and is_text_literal(parent.left)

    def _passed(self, node: ast.AST, call: ast.Call, is_text: bool) -> _Context | None:
        """What a call does with its argument; None where its result stands for it."""
        name, line = dotted_name(call.func), self._line(call)
        if is_showing(name):
            return _shown(line, shown_name(name))
        if self._is_size(node, call, name):
            return _Context(
                "true", "used as a shape or an index", "likely", f"line {line} passes it to {shown_name(name)}"
            )
        if is_formatting(call) or PASSING_CALLS.fullmatch(name):
            return None
        if isinstance(self._places[call].parent, ast.Raise):
            return _shown(line, "an error message")
        if is_text and not NAMING_CALLS.fullmatch(name):
            return self._text_shown(node)
        return _open(f"passed to {shown_name(name)}", f"line {line} passes it to {shown_name(name)}")

    def _is_size(self, node: ast.AST, call: ast.Call, name: str) -> bool:
        last = name.rpartition(".")[2]
        place = self._places[node]
        if isinstance(place.parent, ast.keyword):
            keyword = place.parent.arg
            return keyword in SIZE_KEYWORDS or (last in SHAPE_ARGUMENTS and keyword in SHAPE_KEYWORDS)
        if last not in SHAPE_ARGUMENTS:
            return False
        positions = SHAPE_ARGUMENTS[last]
        return positions is None or any(call.args[i] is node for i in positions if i < len(call.args))

    def _text_shown(self, node: ast.AST) -> _Context:
        line = self._line(node)
        return _Context("false", "the value is only formatted as text", "likely", f"line {line} formats it as text")

    def _assigned(
        self,
        node: ast.AST,
        statement: ast.stmt,
        targets: list[ast.expr],
        element: int | None,
        added_to: set[str],
        followed: set[tuple[str, ast.AST]],
    ) -> _Context:
        line = self._line(node)
        names: list[str] = []
        for target in targets:
            if isinstance(target, (ast.Tuple, ast.List)) and isinstance(node, (ast.Tuple, ast.List)):
                has_star = any(isinstance(part, ast.Starred) for part in (*target.elts, *node.elts))
                if has_star or element is None or len(target.elts) != len(node.elts):
                    return _open("stored", f"line {line} stores it")
                target = target.elts[element]
            bound = target_names(target)
            if bound is None:
                return _open("stored", f"line {line} stores it")
            names += bound
        if added_to & set(names):
            return self._accumulated(line)
        return _combine([self._follow(name, statement, followed) for name in names] or [_open("stored")])

    # Following a variable

    def _follow(self, name: str, binding: ast.AST, followed: set[tuple[str, ast.AST]]) -> _Context:
        """What becomes of a variable after `binding` (an assignment, or a walrus) gave it the value."""
        scope = self._variables_of(self._places[binding].scope)
        kept = f"line {self._line(binding)} keeps it as {name}"
        if (name, binding) in followed:
            return CARRIED_ALONG
        followed.add((name, binding))
        if isinstance(scope, (ast.ClassDef, ast.Lambda)) or len(followed) > MAX_FOLLOWED:
            return _open("stored", kept)
        if not self._is_private(name, scope):
            return _open("stored where other code can read it", kept)
        all_loads = self._later_loads(name, binding)
        loads = [load for load in all_loads if not self._is_identity_test(load)]
        if not loads:
            if isinstance(scope, ast.Module) or all_loads:
                return _open("stored", kept)
            return _Context("false", NEVER_USED, "likely", f"{kept}, which is never used")
        context = _combine([self._load_context(load, followed) for load in loads])
        certainty: Certainty = "likely" if context.kind else "open"
        evidence = f"{kept}, and {context.evidence}" if context.evidence else kept
        return replace(context, certainty=certainty, evidence=evidence)

    def _load_context(self, load: ast.Name, followed: set[tuple[str, ast.AST]]) -> _Context:
        if isinstance(self._places[load].parent, ast.AugAssign) and isinstance(load.ctx, ast.Store):
            return _open("changed in place", f"line {load.lineno} changes it")
        return self._context(load, followed)

    def _is_identity_test(self, load: ast.AST) -> bool:
        """`name is None` does not look at the value."""
        parent = self._places[load].parent
        return isinstance(parent, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in parent.ops)

    def _is_private(self, name: str, scope: ast.AST) -> bool:
        """Whether only the code of `scope` itself can read its variable: no closure, `global` or `locals()`."""
        if any(name in declared for declared in self._declared.values()):
            return False
        for node in (node for reflection in REFLECTION for node in self._named.get(reflection, [])):
            call = self._places[node].parent
            is_of_object = node.id == "vars" and isinstance(call, ast.Call) and bool(call.args)
            if not is_of_object and scope in self._scopes_around(node):
                return False
        return all(
            self._variables_of(self._places[node].scope) is scope
            for node in self._named[name]
            if self._owner(node) is scope
        )

    def _scopes_around(self, node: ast.AST) -> Iterator[ast.AST]:
        scope = self._places[node].scope
        while not isinstance(scope, ast.Module):
            yield scope
            scope = self._places[scope].scope
        yield scope

    def _later_loads(self, name: str, binding: ast.AST) -> list[ast.Name]:
        """Places that may read the variable's value of `binding`, each once."""
        scope = self._variables_of(self._places[binding].scope)
        statement = binding
        while not isinstance(statement, ast.stmt):
            statement = self._places[statement].parent
        parts = list(self._later_parts(statement, name))
        if statement is not binding:
            parts.append(statement)
        loads: dict[ast.Name, None] = {}
        for node in (node for part in parts for node in ast.walk(part)):
            if not isinstance(node, ast.Name) or node.id != name:
                continue
            is_read = isinstance(node.ctx, ast.Load) or isinstance(self._places[node].parent, ast.AugAssign)
            if is_read and self._owner(node) is scope:
                loads[node] = None
        return list(loads)

    def _later_parts(self, statement: ast.stmt, name: str) -> Iterator[ast.AST]:
        """Code that may run after `statement` in its function while the name still has the value given there."""
        child: ast.AST = statement
        # An exception, a `break` or a `continue` can skip the statement that gives the name its next value.
        can_skip = any(isinstance(outer, TRIES) for outer in self._statements_around(statement))
        while True:
            place = self._places[child]
            parent, field = place.parent, place.field
            if field not in {"cases", "handlers"}:
                block = getattr(parent, field)
                for later in block[block.index(child) + 1 :]:
                    yield later
                    if binds(later, name) and not can_skip:
                        return
                    can_skip = can_skip or any(isinstance(n, (ast.Break, ast.Continue)) for n in ast.walk(later))
            if isinstance(parent, LOOPS) and field == "body":
                yield from self._next_round(parent, child, name)
                yield from parent.orelse
            elif isinstance(parent, TRIES):
                later_fields = ("handlers", "orelse", "finalbody") if field == "body" else ("finalbody",)
                for later_field in later_fields:
                    yield from getattr(parent, later_field)
            if isinstance(parent, (ast.Module, *DEFINITIONS)):
                return
            child = parent

    def _statements_around(self, statement: ast.AST) -> Iterator[ast.AST]:
        while not isinstance(statement, (ast.Module, *DEFINITIONS)):
            statement = self._places[statement].parent
            yield statement

    @staticmethod
    def _next_round(loop: ast.For | ast.AsyncFor | ast.While, child: ast.AST, name: str) -> Iterator[ast.AST]:
        if isinstance(loop, ast.While):
            yield loop.test
        elif name in (target_names(loop.target) or ()):
            return
        for earlier in loop.body:
            yield earlier
            if earlier is child or binds(earlier, name):
                return
