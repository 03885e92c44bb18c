"""The rules by which `source` reads the user's Python: which calls show or need a value, what is plain."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

NUMBER_CALLS = frozenset({"float", "int", "complex"})
COMPARING_CALLS = frozenset({"max", "min", "sorted", "all", "any"})
TEXT_CALLS = frozenset({"str", "repr"})
DOWNLOAD_METHODS = frozenset({"cpu", "to", "numpy", "copy_", "type"})
DOWNLOAD_FUNCTIONS = frozenset({"np.asarray", "np.array", "numpy.asarray", "numpy.array", "torch.save"})
EFFECTS = frozenset({"copy_", "torch.save"})
"""Downloads that are made for what they do, so that nobody uses their value."""

PLAIN_CALLS = re.compile(
    r"(?:.*\.)?(?:item|tolist|size|numel|dim|ndimension|nelement|startswith|endswith|is_available|is_nonzero)"
    r"|float|int|complex|bool|all|any|len|isinstance|issubclass|hasattr|callable|str|repr|format|range|ord|id|type"
    r"|time\.\w+|os\..+|dist\.get_(?:rank|world_size)|torch\.is_tensor"
)
"""Calls whose result is never a tensor."""
PLAIN_ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "device", "is_cuda", "requires_grad", "training"})
METADATA_METHODS = frozenset({"size", "numel", "nelement", "dim", "ndimension", "stride", "is_pinned", "is_contiguous"})
"""Methods that do not look at values."""

SHOWING_CALLS = re.compile(
    r"(?:.+\.)?(?:pprint|pp|print|set_postfix(?:_str)?|set_description(?:_str)?|add_scalars?|add_text|add_histogram)"
    r"|(?:.+\.)?(?:log_metrics?|log_scalar|rank_zero_(?:info|warn|debug|print)|tqdm\.write|pbar\.write)"
    r"|self\.(?:log|log_dict)|(?:wandb|wandb\.run|accelerator|fabric|console)\.log|mlflow\.log_\w+"
    r"|warnings\.warn|(?:click|typer)\.s?echo|sys\.(?:__)?std(?:out|err)(?:__)?\.write"
)
LOGGER = re.compile(r"(?:.*[._])?(?:log|\w*logger|logging)", re.IGNORECASE)
LOGGER_METHODS = frozenset(
    {"debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log", "success", "trace"}
)
NAMING_CALLS = re.compile(r"open|(?:.*\.)?Path|os\..+|torch\.(?:save|load)|getattr|setattr|hasattr|delattr|eval|exec")
"""Calls that do something with what a text says: there, a formatted value is not merely shown."""
PASSING_CALLS = re.compile(
    r"float|int|complex|bool|str|repr|round|abs|min|max|sum|sorted|all|any|list|tuple|set|dict|divmod|pow|zip|enumerate"
    r"|(?:math|np|numpy|statistics)\.\w+"
)
"""Calls whose result stands for their arguments."""

SHAPE_ARGUMENTS: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("range", "arange", "zeros", "ones", "empty", "rand", "randn", "randperm", "eye")),
    **dict.fromkeys(("new_zeros", "new_ones", "new_empty", "Size", "islice")),
    **dict.fromkeys(("reshape", "view", "expand", "repeat", "narrow", "unflatten", "resize_", "broadcast_to", "tile")),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split", "topk", "select", "unbind")),
    **dict.fromkeys(("full", "new_full"), (0,)),
    "randint": (2,),
    "linspace": (2,),
}
"""Last part of a call's name, and which of its positional arguments are sizes or positions (None: all)."""
SHAPE_KEYWORDS = frozenset({"size", "shape", "split_size", "split_size_or_sections", "steps", "k"})
"""Size arguments of the calls above."""
SIZE_KEYWORDS = frozenset({"output_size", "num_classes", "minlength", "total_length"})
"""Size arguments of any call."""

CONTROL = {
    (ast.If, "test"): "if",
    (ast.While, "test"): "while",
    (ast.Assert, "test"): "assert",
    (ast.IfExp, "test"): "ternary",
    (ast.comprehension, "ifs"): "comprehension if",
    (ast.match_case, "guard"): "case",
    (ast.Match, "subject"): "match",
}
PASSES_ON = frozenset(
    {
        *((ast.BinOp, "left"), (ast.BinOp, "right"), (ast.UnaryOp, "operand"), (ast.Starred, "value")),
        *((ast.Compare, "left"), (ast.Compare, "comparators"), (ast.IfExp, "body"), (ast.IfExp, "orelse")),
        *((ast.Tuple, "elts"), (ast.List, "elts"), (ast.Set, "elts"), (ast.Dict, "values"), (ast.Subscript, "value")),
        *((ast.ListComp, "elt"), (ast.SetComp, "elt"), (ast.GeneratorExp, "elt"), (ast.DictComp, "value")),
        *((ast.BoolOp, "values"), (ast.FormattedValue, "value"), (ast.FormattedValue, "format_spec")),
        *((ast.JoinedStr, "values"), (ast.keyword, "value")),
    }
)
"""Where the value of a part becomes (part of) the value of the whole."""
POSITIONS = {
    (ast.Subscript, "slice"): "index",
    (ast.Slice, "lower"): "slice bound",
    (ast.Slice, "upper"): "slice bound",
    (ast.Slice, "step"): "slice bound",
    (ast.Dict, "keys"): "key",
    (ast.DictComp, "key"): "key",
}
RETURNED = "returned"
NEVER_USED = "the value is never used"
OPEN_ENDS = {
    (ast.Return, "value"): RETURNED,
    (ast.Lambda, "body"): "returned by a lambda",
    (ast.Yield, "value"): "yielded",
    (ast.YieldFrom, "value"): "yielded",
    (ast.Await, "value"): "awaited",
    (ast.For, "iter"): "looped over",
    (ast.AsyncFor, "iter"): "looped over",
    (ast.comprehension, "iter"): "looped over",
    (ast.Attribute, "value"): "asked for an attribute",
}

REFLECTION = frozenset({"locals", "globals", "vars", "exec", "eval"})
LOOPS = (ast.For, ast.AsyncFor, ast.While)
TRIES = (ast.Try, ast.TryStar) if hasattr(ast, "TryStar") else (ast.Try,)
INLINED_SCOPES = {ast.ListComp: "<listcomp>", ast.SetComp: "<setcomp>", ast.DictComp: "<dictcomp>"}
"""Code objects of their own before Python 3.12, part of the function around them since."""
SCOPES = {**INLINED_SCOPES, ast.GeneratorExp: "<genexpr>", ast.Lambda: "<lambda>", ast.Module: "<module>"}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
CLAUSES = (ast.stmt, ast.ExceptHandler, ast.match_case)
UNPLACED = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)
"""Nodes that `ast` shares between places."""


def dotted_name(node: ast.AST) -> str:
    """`self.logger.info` for that expression, calls and subscripts in between left out; `.item` after anything else."""
    parts: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Subscript):
            node = node.value
        else:
            parts.append(node.id if isinstance(node, ast.Name) else "")
            return ".".join(reversed(parts))


def method_name(node: ast.AST) -> str | None:
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None


def shown_name(name: str) -> str:
    """A callee's name as it is shown: long chains by their last two parts."""
    return f"{'.'.join(name.split('.')[-2:]).lstrip('.')}()"


def arguments_of(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def is_showing(name: str) -> bool:
    receiver, _, method = name.rpartition(".")
    is_log = method in LOGGER_METHODS and LOGGER.fullmatch(receiver) is not None
    return is_log or SHOWING_CALLS.fullmatch(name) is not None


def is_text_literal(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_formatting(call: ast.Call) -> bool:
    """`"…".format(x)` or the builtin `format(x, spec)`."""
    return method_name(call) == "format" or dotted_name(call.func) == "format"


def is_plain(node: ast.AST) -> bool:
    """Whether the syntax shows that the value is no tensor: constants, `len()`, what was read already, their sums."""
    if isinstance(node, (ast.Constant, ast.JoinedStr, ast.Lambda, ast.Dict, *COMPREHENSIONS)):
        return True
    if isinstance(node, ast.Call):
        name = dotted_name(node.func)
        if name in {"round", "abs", "max", "min", "sum"} or name.startswith("math."):
            return all(is_plain(argument) for argument in arguments_of(node))
        return PLAIN_CALLS.fullmatch(name) is not None
    if isinstance(node, ast.Attribute):
        return node.attr in PLAIN_ATTRIBUTES
    if isinstance(node, ast.Compare):
        if all(isinstance(operator, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for operator in node.ops):
            return True
        return is_plain(node.left) and all(is_plain(operand) for operand in node.comparators)
    if isinstance(node, ast.BinOp):
        return is_text_literal(node.left) or (is_plain(node.left) and is_plain(node.right))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not) or is_plain(node.operand)
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return all(is_plain(element) for element in node.elts)
    if isinstance(node, ast.Subscript):
        return is_plain(node.value)
    return isinstance(node, (ast.Starred, ast.FormattedValue)) and is_plain(node.value)


def is_on_cpu(node: ast.AST) -> bool:
    """Whether the value was brought to the CPU within the expression."""
    if isinstance(node, ast.Call):
        name = dotted_name(node.func)
        if name.split(".")[0] in {"np", "numpy"} or method_name(node) in {"cpu", "numpy", "tolist", "item"}:
            return True
        return isinstance(node.func, ast.Attribute) and is_on_cpu(node.func.value)
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(is_on_cpu(element) for element in node.elts)
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return is_on_cpu(node.elt)
    if isinstance(node, ast.BinOp):
        return is_on_cpu(node.left) and is_on_cpu(node.right)
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Subscript) and is_on_cpu(node.value))


def may_go_to_cpu(call: ast.Call) -> bool:
    """Whether `.to(…)` or `.type(…)` may move to the CPU: not with a data type alone, nor to `"cuda…"`."""
    target = next((k.value for k in call.keywords if k.arg == "device"), call.args[0] if call.args else None)
    if isinstance(target, ast.Constant):
        name = target.value if isinstance(target.value, str) else ""
        return name.startswith("cpu") or (name.endswith("Tensor") and ".cuda." not in name)
    if isinstance(target, ast.Attribute) and dotted_name(target).startswith("torch."):
        return target.attr.endswith("Tensor") and ".cuda." not in dotted_name(target)
    return target is not None


def holds_plain(node: ast.expr) -> bool:
    """Whether the syntax shows that no element of what is compared is a tensor."""
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        return is_plain(node.elt)
    return is_plain(node)


def truth_leaves(test: ast.expr) -> Iterator[ast.expr]:
    """The expressions whose truth value a test asks for: it jumps on the parts of `and`, `or` and `not`."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from truth_leaves(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from truth_leaves(test.operand)
    else:
        yield test


def own_parts(statement: ast.AST) -> Iterator[ast.AST]:
    """What of a statement is not in statements (or `except` and `case` clauses) of their own."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, CLAUSES):
            yield child


def header_nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a statement but those in statements inside it."""
    for part in own_parts(statement):
        yield from ast.walk(part)


def header_lines(clause: ast.AST) -> range:
    """The lines of a statement or clause, those of the statements inside it left out."""
    located = [
        part
        for own in own_parts(clause)
        for part in ([own] if isinstance(own, (ast.expr, ast.pattern)) else ast.walk(own))
        if isinstance(part, (ast.expr, ast.pattern))
    ]
    firsts = [part.lineno for part in located]
    lasts = [part.end_lineno or part.lineno for part in located]
    if isinstance(clause, (ast.stmt, ast.ExceptHandler)):
        is_compound = any(isinstance(child, CLAUSES) for child in ast.iter_child_nodes(clause))
        firsts.append(clause.lineno)
        lasts.append(clause.lineno if is_compound else clause.end_lineno or clause.lineno)
    return range(min(firsts, default=0), max(lasts, default=-1) + 1)


def target_names(target: ast.AST) -> list[str] | None:
    """The plain names bound by an assignment's target; None if it binds anything else (`self.x`, `d[k]`)."""
    if isinstance(target, ast.Name):
        return [target.id]
    if isinstance(target, ast.Starred):
        return target_names(target.value)
    if isinstance(target, (ast.Tuple, ast.List)):
        names = [target_names(element) for element in target.elts]
        return None if None in names else [name for part in names if part for name in part]
    return None


def binds(statement: ast.stmt, name: str) -> bool:
    """Whether the statement gives the name a new value whenever it runs."""
    if isinstance(statement, ast.Assign):
        return any(name in (target_names(target) or ()) for target in statement.targets)
    is_assigned = isinstance(statement, ast.AnnAssign) and statement.value is not None
    return is_assigned and name in (target_names(statement.target) or ())  # type: ignore[attr-defined]
