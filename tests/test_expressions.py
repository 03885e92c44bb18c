"""Which operation an expression is, by hand: the part of the line between » and « is what was executed."""

from __future__ import annotations

import ast

import pytest

from nsys_sync.analysis.expressions import Expressions, Operation

CASES = {
    "»loss.item()«": ("scalar-read", ".item()"),
    "»float(x)«": ("scalar-read", "float()"),
    "»x.tolist()«": ("tolist", ".tolist()"),
    "»bool(x)«": ("truth-value", "bool()"),
    "»max(x, y)«": ("python-max-min", "max()"),
    "»x.cpu()«.numpy()": ("to-cpu", ".cpu()"),
    "»x.numpy(force=True)«": ("numpy", ".numpy()"),
    "»x.cuda()«": ("upload", ".cuda()"),
    "»x.to('cuda:1')«": ("upload", ".to()"),
    "»x.to(device='cpu')«": ("to-cpu", ".to()"),
    "»x.to(torch.device('cuda'))«": ("upload", ".to()"),
    "»x.to(other)«": (None, ".to()"),
    "»x.to(torch.float16)«": (None, ".to()"),
    "»x.to()«": (None, ".to()"),
    "d = 'cuda'; »x.to(d)«": ("upload", ".to()"),
    "d = torch.device('cuda' if torch.cuda.is_available() else 'cpu'); »x.to(d)«": ("upload", ".to()"),
    "d = 'cuda'; d = other; »x.to(d)«": (None, ".to()"),
    "d = 'cuda'; d = 'cpu'; »x.to(d)«": (None, ".to()"),
    "d = 'cuda'; f = lambda d: »x.to(d)«": (None, ".to()"),
    "»torch.tensor([1.0], device=d)«": ("construct", "torch.tensor()"),
    "»torch.tensor([x])«": (None, "torch.tensor()"),
    "»x.new_tensor([1.0])«": ("construct", ".new_tensor()"),
    "»torch.nonzero(x)«": ("nonzero", "torch.nonzero()"),
    "»x.nonzero()«": ("nonzero", ".nonzero()"),
    "»torch.where(x)«": ("nonzero", "torch.where()"),
    "»torch.where(x, y, z)«": (None, "torch.where()"),
    "»torch.unique(x)«": ("unique", "torch.unique()"),
    "»torch.linalg.inv(x)«": ("linalg-check", "linalg.inv()"),
    "»torch.linalg.inv(x).cpu()«": ("to-cpu", ".cpu()"),
    "»torch.stack(x).to('cuda')«": ("upload", ".to()"),
    "»torch.tensor(x).abs()«": (None, ".abs()"),
    "»F.one_hot(x)«": (None, "F.one_hot()"),
    "»self.head.weight.item()«": ("scalar-read", ".item()"),
    "»torch.bincount(x)«": (None, "torch.bincount()"),
    "»unique(x)«": (None, "unique()"),
    "»range(n)«": ("gpu-index", "range()"),
    "»x[:n]«": ("gpu-index", "x[:n]"),
    "»x[:, 1:n]«": ("gpu-index", "x[:, 1:n]"),
    "»x[i]«": (None, "x[i]"),
    "»x[:n, i]«": (None, "x[:n, i]"),
    "»x[[0, 3]]«": ("cpu-index", "x[[0, 3]]"),
    "»x[y > 0]«": ("mask-index", "x[y > 0]"),
    "»x[~(y > 0) & (z == 1)]«": ("mask-index", "x[~(y > 0) & (z == 1)]"),
    "m = y > 0; »x[m]«": ("mask-index", "x[m]"),
    "m = y > 0; m = f(); »x[m]«": (None, "x[m]"),
    "m = y > 0; f = lambda m: »x[m]«": (None, "x[m]"),
    "»x[y > 0]« = 1": ("mask-assign", "x[y > 0]"),
    "»x[0]« = y": (None, "x[0]"),
    "a = 1 if »t« else 2": ("truth-value", "ternary"),
    "assert »x.any()«": ("truth-value", "assert"),
    "not »x«": ("truth-value", "not"),
    "»not x«": ("truth-value", "not"),
    "»x« and y": ("truth-value", "and/or"),
    "[a for a in b if »a > 0«]": ("truth-value", "comprehension if"),
    "é = '→'; »x.item()«": ("scalar-read", ".item()"),
    "f(»x.item()«, y.cpu())": ("scalar-read", ".item()"),
}


@pytest.mark.parametrize("code", CASES)
def test_the_expression_that_was_executed(code: str) -> None:
    text = code.replace("»", "").replace("«", "")
    begin = len(code[: code.index("»")].encode())
    end = len(code[: code.index("«")].replace("»", "").encode())
    parsed = Expressions.parse(text)
    assert parsed is not None
    assert parsed.operation(1, (1, begin, 1, end)) == Operation(*CASES[code])


def test_a_chain_over_several_lines() -> None:
    text = "y = (x\n    .abs()\n    .item())\n"
    parsed = Expressions.parse(text)
    assert parsed is not None
    # As CPython has it: the line of the last name, and its column.
    code = compile(text, "x", "exec")
    if hasattr(code, "co_positions"):
        spans = {(p[0], p[2], p[1], p[3]) for p in code.co_positions() if p[0] == 3 and None not in p}
        found = {parsed.operation(3, span) for span in spans}  # type: ignore[arg-type]
        assert Operation("scalar-read", ".item()") in found
    assert parsed.operation(3, None) == Operation("scalar-read", ".item()")


def test_a_span_of_nothing() -> None:
    parsed = Expressions.parse("x.item()\n")
    assert parsed is not None
    assert parsed.operation(1, (1, 0, 1, 6)) is None
    assert parsed.operation(7, (7, 0, 7, 6)) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x.item()", ("scalar-read", ".item()")),
        ("f(x.item(), y.item())", ("scalar-read", ".item()")),
        ("if x.item() > 3: pass", ("scalar-read", ".item()")),
        ("if x > 3: pass", ("truth-value", "if")),
        ("x.cpu(), y.item()", None),
        ("if x.any() and y.cpu(): pass", None),
        ("x[i]", None),
        ("step(x)", None),
        ("", None),
    ],
)
def test_without_a_span_only_what_stands_alone_on_the_line(line: str, expected: tuple[str, str] | None) -> None:
    parsed = Expressions.parse(line)
    assert parsed is not None
    assert parsed.operation(1, None) == (Operation(*expected) if expected else None)


def test_what_cannot_be_parsed() -> None:
    assert Expressions.parse("if True") is None
    assert Expressions.parse("\0") is None
    assert Expressions.parse("(" * 10_000 + ")" * 10_000) is None
    assert Expressions.parse(" " * 1_000_001) is None
    with pytest.raises(SyntaxError):
        ast.parse("if True")
