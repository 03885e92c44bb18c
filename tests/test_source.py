"""What the source says of a read: small programs with the answer stated by hand."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import CodeType
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsys_sync.analysis import source
from nsys_sync.analysis.source import Family, Source, SourceUse

FAMILIES: tuple[Family, ...] = get_args(Family)


def parsed(text: str) -> Source:
    found = Source.parse(dedent(text))
    assert found is not None
    return found


def used(body: str, family: Family = "scalar", line: int = 2, function: str = "f") -> SourceUse:
    """Of `body` as the body of `def f(x, …):`, so that its first line is line 2."""
    text = "def f(x, y, n, i, log, losses):\n" + "".join(f"    {part}\n" for part in dedent(body).splitlines())
    found = parsed(text).use(function, line, family)
    assert found is not None
    return found


SHOWN = [
    "print(x.item())",
    "print('loss', x.mean().item(), y)",
    "print(round(float(x.sum()), 3))",
    "print([v.item() for v in x])",
    "print(x.item() > 3)",
    "log.info('loss %.3f', x.item())",
    "self.logger.debug('loss %s', x.item())",
    "logging.getLogger(__name__).warning(x.item())",
    "LOG.error(f'{x.item()}')",
    "train_logger.info(x.item())",
    "warnings.warn(str(x.item()))",
    "wandb.log({'loss': x.item()})",
    "writer.add_scalar('loss', x.item(), i)",
    "self.writer.add_scalars('loss', {'a': x.item()}, i)",
    "tqdm.write(str(x.item()))",
    "bar.set_postfix(loss=x.item())",
    "mlflow.log_metric('loss', x.item())",
    "mlflow.log_metrics({'loss': x.item()})",
    "rank_zero_info(x.item())",
    "sys.stdout.write('%f' % x.item())",
    "self.log('loss', x.item())",
    "print('%d' % x.item())",
    "print('{:.3f}'.format(x.item()))",
    "return f'loss {x.item():.3f}'",
    "text = f'loss {x.item():.3f}'",
    "text = 'loss %.3f' % x.item()",
    "losses.append(f'{x.item()}')",
    "raise ValueError(x.item())",
    "raise ValueError(f'loss {x.item()}')",
    "assert y, x.item()",
    "f'{x:{n.item()}}'",
    "print(x.item() if y else 0)",
    "print(y and x.item())",
    "x.item()",
]
NEEDED = [
    "if x.item() > 3: pass",
    "while x.item(): pass",
    "assert x.item() == 3",
    "y = 1 if x.item() else 2",
    "y = [v for v in losses if v.item() > 0]",
    "return x.item() and y",
    "return not x.item()",
    "if max(x.item(), 3) > 4: pass",
    "if any([v.item() > 3 for v in losses]): pass",
    "match x.item():\n    case 1: pass",
    "return y[x.item()]",
    "return y[:x.item()]",
    "y[x.item()] = 1",
    "return y[0, 1:int(x)]",
    "return {x.item(): 1}",
    "for i in range(x.item()): pass",
    "return torch.zeros(x.item(), device=y)",
    "return torch.full((x.item(),), 1.0)",
    "return y.view(x.item(), -1)",
    "return torch.split(y, [x.item(), 3])",
    "return y.new_zeros(size=(x.item(),))",
    "return F.one_hot(y, num_classes=int(x.max()) + 1)",
    "return {f'{x.item()}': 1}",
    "if f'{x.item()}' == '3': pass",
]
OPEN = [
    "return x.item()",
    "return float(x)",
    "losses.append(x.item())",
    "losses += [x.item()]",
    "self.loss = x.item()",
    "y['loss'] = x.item()",
    "y = foo(x.item())",
    "y, *z = x.item(), 3",
    "yield x.item()",
    "with foo(x.item()): pass",
    "return torch.full((3,), x.item())",
    "return open(f'epoch{n.item()}')",
    "return torch.log(x.item())",
    "y = lambda: x.item()",
    "for v in [x.item()]: pass",
    "return await_(x.item())",
    "foo.bar(x.item()).baz()",
]


@pytest.mark.parametrize("body", SHOWN)
def test_what_is_only_shown_is_not_needed(body: str) -> None:
    found = used(body)
    assert (found.dependency, found.certainty) == ("false", "likely")
    assert found.evidence.startswith("line 2 ")


@pytest.mark.parametrize("body", NEEDED)
def test_what_decides_or_counts_is_needed(body: str) -> None:
    found = used(body)
    assert found.dependency == "true"
    assert found.evidence.startswith("line 2 ")


@pytest.mark.parametrize("body", OPEN)
def test_what_the_source_does_not_tell_stays_open(body: str) -> None:
    function = "<lambda>" if "lambda" in body else "f"
    found = used(body, function=function)
    assert (found.dependency, found.certainty) == (None, "open")
    assert found.reason


@pytest.mark.parametrize(
    ("body", "certainty"),
    [
        ("if x.item() > 3: pass", "certain"),
        ("if foo.size() and x.item(): pass", "certain"),
        ("if float(x.item()).is_integer(): pass", "likely"),
        ("return y[x.item()]", "likely"),
        ("v = x.item()\nif v: pass", "likely"),
        ("if x.item() > n.item(): pass", "certain"),
    ],
)
def test_only_syntax_makes_it_certain(body: str, certainty: str) -> None:
    assert (used(body).dependency, used(body).certainty) == ("true", certainty)


FOLLOWED = [
    ("v = x.item()\nprint(v)", "false"),
    ("v: float = x.item()\nprint(v)", "false"),
    ("v = x.item()\nlog.info('loss %f', v)\nprint(f'{v:.3f}')", "false"),
    ("v = x.item() / n\nw = v * 2\nprint(w)", "false"),
    ("a, b, c = x.item(), y.item(), n.item()\nprint(a, b, c)", "false"),
    ("a, b = x.item(), y\nif b: pass\nprint(a)", "false"),
    ("a, b = [v.item() for v in losses]\nprint(a)\nprint(b)", "false"),
    ("a, b = [v.item() for v in losses]\nprint(a)\nif b: pass", "true"),
    ("v = x.item()\nprint(v)\nif v > 3: pass", "true"),
    ("v = x.item()\nreturn y[v]", "true"),
    ("v = x.item()\nfor i in range(v): pass", "true"),
    ("v = x.item()\nok = v > 3\nif ok: pass", "true"),
    ("if (v := x.item()) > 3: pass", "true"),
    ("print(v := x.item())\nprint(v)", "false"),
    ("print(v := x.item())\nif v: pass", "true"),
    ("print(v := x.item())", "false"),
    ("v = x.item()\nprint(v)\nreturn v", None),
    ("v = x.item()\nlosses.append(v)", None),
    ("v = x.item()\ny.v += v", None),
    ("v = x.item()\nv += 1\nprint(v)", None),
    ("v = x.item()", "false"),
    ("v = x.item()\nv = 3\nif v: pass", "false"),
    ("v = x.item()\nif y:\n    v = 3\nif v: pass", "true"),
    ("v = x.item()\nif v is None: pass", None),
    ("v = x.item()\nif v is not None:\n    print(v)", "false"),
    # Earlier uses are of another value.
    ("v = foo()\nif v: pass\nv = x.item()\nprint(v)", "false"),
    # A closure, a global or `locals()` may read it elsewhere.
    ("v = x.item()\nprint(v)\ndef g(): return v", None),
    ("v = x.item()\nprint(v)\ng = lambda: v", None),
    ("v = x.item()\nprint(v)\ng = lambda v: v", "false"),
    ("v = x.item()\nprint(v)\ndef g():\n    v = 2\n    return v", "false"),
    ("v = x.item()\nprint(v)\ndef g():\n    nonlocal v", None),
    ("v = x.item()\nglobal v\nprint(v)", None),
    ("v = x.item()\nprint(v)\nfoo(locals())", None),
    ("v = x.item()\nexec('v')", None),
    ("v = x.item()\nprint(v, vars(y))", "false"),
    # Carried along, and never looked at.
    ("v = x.item()\nwhile y:\n    v = v + 1", "false"),
    ("v = x.item()\nwhile y:\n    v = v + 1\nreturn y[v]", "true"),
    ("try:\n    v = x.item()\n    foo()\n    v = 2\nexcept E:\n    if v: pass", "true"),
    ("try:\n    v = x.item()\nfinally:\n    print(v)", "false"),
]


@pytest.mark.parametrize(("body", "dependency"), FOLLOWED)
def test_a_local_variable_is_followed(body: str, dependency: str | None) -> None:
    line = next(number for number, part in enumerate(body.splitlines(), 2) if ".item()" in part)
    found = used(body, line=line)
    assert found.dependency == dependency
    assert not found.dependency or found.evidence


def test_a_loop_comes_round_again() -> None:
    again = used("v = 0\nwhile y:\n    if v: pass\n    v = x.item()", line=5)
    assert again.dependency == "true"
    rebound = used("while y:\n    v = foo()\n    v.backward()\n    v = v.item()\n    print(v)", line=5)
    assert rebound.dependency == "false"
    target = used("for v in y:\n    if v: pass\n    v = v.item()\n    print(v)", line=4)
    assert target.dependency == "false"
    skipped = used("while y:\n    v = x.item()\n    if n: continue\n    v = 0\nif v: pass", line=3)
    assert skipped.dependency == "true"


def test_evidence_names_the_lines() -> None:
    found = used("v = x.item()\n\nprint(v)")
    assert found.evidence == "line 2 keeps it as v, and line 4 passes it to print()"
    assert found.reason == "the value is only printed"
    assert used("if x.item(): pass").evidence == "line 2 tests it (if)"
    assert used("log.info(x.item())").evidence == "line 2 passes it to log.info()"
    assert used("v = x.item()").evidence == "line 2 keeps it as v, which is never used"


def test_module_variables_are_followed_only_to_uses_that_are_there() -> None:
    def at_top(text: str) -> str | None:
        found = parsed(text).use("<module>", 1, "scalar")
        return found.dependency if found else "no use"

    assert at_top("v = x.item()") is None
    assert at_top("v = x.item()\nprint(v)") == "false"
    assert at_top("v = x.item()\nif v: pass") == "true"
    assert at_top("v = x.item()\nprint(v)\ndef g(): return v") is None
    assert at_top("v = x.item()\nprint(v)\ndef g(v): return v") == "false"
    in_class = parsed("class A:\n    v = x.item()\n    print(v)").use("A", 2, "scalar")
    assert in_class is not None and in_class.dependency is None


@pytest.mark.parametrize("body", ["y += x.item()", "y -= x.item() * n", "y = y + x.item()", "y = x.item() + y"])
def test_a_sum_on_the_cpu_is_said_to_be_one(body: str) -> None:
    found = used(body)
    assert (found.dependency, found.reason) == (None, "accumulated on the CPU: can be accumulated on the GPU")


OPERATIONS: list[tuple[Family, str, str | None]] = [
    ("scalar", "y = x.item()", ".item()"),
    ("scalar", "y = float(x.sum())", "float()"),
    ("scalar", "y = int(n)", "int()"),
    ("scalar", "y = complex(x)", "complex()"),
    ("scalar", "y = float(x.item())", ".item()"),
    ("scalar", "y = float(x.item() * 2)", ".item()"),
    ("scalar", "y = int(len(x))", None),
    ("scalar", "y = int('3')", None),
    ("scalar", "y = math.isnan(x)", "math.isnan()"),
    ("scalar", "y = f'{x.mean():.3f}'", "f-string"),
    ("scalar", "y = f'{i} {x.item():.3f}'", ".item()"),
    ("scalar", "y = '%.3f' % x", "%-format"),
    ("scalar", "y = '{:.3f}'.format(x)", ".format()"),
    ("scalar", "log.info('%.3f', x)", "log.info()"),
    ("scalar", "y = x.item(), float(n)", None),
    ("scalar", "y = x.item(), n.item()", ".item()"),
    ("scalar", "y = x + 1", None),
    ("list", "y = x.tolist()", ".tolist()"),
    ("list", "y = list(x)", None),
    ("truth", "y = bool(x)", "bool()"),
    ("truth", "y = torch.is_nonzero(x)", "is_nonzero()"),
    ("truth", "y = x.is_nonzero()", "is_nonzero()"),
    ("truth", "y = max(x[0], x[1])", "max()"),
    ("truth", "y = min([x[0], x[1]])", "min()"),
    ("truth", "y = max(v for v in x)", "max()"),
    ("truth", "y = max(v.item() for v in x)", None),
    ("truth", "y = max(1, len(x))", None),
    ("truth", "y = sorted(x.unbind())", "sorted()"),
    ("truth", "y = all(x > 3)", "all()"),
    ("truth", "y = 2.0 in x", "in"),
    ("truth", "y = 'a' in x", None),
    ("truth", "if x: pass", "if"),
    ("truth", "while x > 3: pass", "while"),
    ("truth", "assert x.all()", "assert"),
    ("truth", "y = 1 if x else 2", "ternary"),
    ("truth", "y = x and 1", "and/or"),
    ("truth", "y = 1 or x", None),
    ("truth", "y = not x", "not"),
    ("truth", "if not x and n: pass", "if"),
    ("truth", "if x.item() > 3: pass", None),
    ("truth", "if len(x) and x is not None: pass", None),
    ("truth", "if any(x > 3): pass", "any()"),
    ("truth", "y = 0 < x < 1", "chained comparison"),
    ("truth", "y = [v for v in x if v > 0]", "comprehension if"),
    ("truth", "if max(x, y) > n: pass", None),
    ("download", "y = x.cpu()", ".cpu()"),
    ("download", "y = x.detach().cpu().numpy()", ".cpu().numpy()"),
    ("download", "y = x.to('cpu')", ".to()"),
    ("download", "y = x.to(n)", ".to()"),
    ("download", "y = x.to('cuda')", None),
    ("download", "y = x.to(torch.float32)", None),
    ("download", "y = x.to(torch.float32).cpu()", ".cpu()"),
    ("download", "y = x.type(torch.FloatTensor)", ".type()"),
    ("download", "y = x.type('torch.cuda.FloatTensor')", None),
    ("download", "y = np.asarray(x.cpu())", ".cpu()"),
    ("download", "y = np.asarray(x)", "np.asarray()"),
    ("download", "torch.save(x, 'a')", "torch.save()"),
    ("download", "y.copy_(x)", ".copy_()"),
    ("download", "y = x.cpu(), n.to('cpu')", None),
    ("print", "print(x)", "print()"),
    ("print", "print(f'{x}')", "f-string"),
    ("print", "print(str(x))", "str()"),
    ("print", "log.info('loss %s', x)", "log.info()"),
    ("print", "y = repr(x)", "repr()"),
    ("print", "y = foo(x)", None),
    ("index", "y = x[n]", "x[n]"),
    ("index", "y = x[:n]", "x[:n]"),
    ("index", "x[n > 3] = 0", "x[n > 3]"),
    ("index", "y = x[0]", None),
    ("index", "y = x[n], y[n]", None),
    ("index", "y: list[int] = x[n]", "x[n]"),
    ("other", "print(foo(x))", "print()"),
    ("other", "y = foo(x)", None),
]


@pytest.mark.parametrize(("family", "body", "operation"), OPERATIONS)
def test_the_operation_is_what_fits_the_family(family: Family, body: str, operation: str | None) -> None:
    found = used(body, family)
    assert found.operation == operation
    assert found.text == body


@pytest.mark.parametrize(
    ("body", "through", "dependency"),
    [
        ("if x: pass", "if", "true"),
        ("if x and n: pass", "if", "true"),
        ("return not x", "not", "true"),
        ("return max(x, n)", "max", None),
        ("print(max(x, n))", "max", "false"),
        ("for i in range(max(x, n)): pass", "max", "true"),
        ("if all(x > 3): pass", "all", "true"),
        ("if 2.0 in x: pass", "in", "true"),
        ("return 2.0 in x", "in", None),
        ("return bool(x)", "bool", None),
        ("if bool(x): pass", "bool", "true"),
        ("if max(x, y) > n: pass", None, "true"),
    ],
)
def test_through_is_what_asked_for_the_truth_value(body: str, through: str | None, dependency: str | None) -> None:
    found = used(body, "truth")
    assert (found.through, found.dependency) == (through, dependency)


@pytest.mark.parametrize(
    ("family", "body", "dependency"),
    [
        ("list", "print(x.tolist())", "false"),
        ("list", "for v in x.tolist(): pass", None),
        ("list", "torch.split(y, x.tolist())", "true"),
        ("list", "v = x.tolist()[0]\nprint(v)", "false"),
        ("download", "print(x.cpu().numpy())", "false"),
        ("download", "return x.cpu()", None),
        ("download", "y.copy_(x)", None),
        ("download", "torch.save(x, 'a')", None),
        ("download", "if (x.cpu() > 3).any(): pass", "true"),
        ("download", "if x.cpu().size(0): pass", None),
        ("download", "v = x.cpu().shape", None),
        ("download", "x.cpu()", "false"),
        ("download", "x.cpu().tofile('a')", None),
        ("print", "print(x)", "false"),
        ("print", "return str(x)", None),
        ("print", "return f'{x}'", "false"),
        ("index", "y = x[:n]", "true"),
        ("index", "y = x[x > 3]", "true"),
        ("index", "y = x[n]", None),
        ("index", "x[x > 3] = 0", None),
        ("other", "print(foo(x))", "false"),
        ("other", "foo(x)", None),
    ],
)
def test_dependency_of_other_families(family: Family, body: str, dependency: str | None) -> None:
    assert used(body, family).dependency == dependency


def test_reads_that_are_used_differently_say_nothing() -> None:
    found = used("y = [print(x.item()), z[n.item()]]")
    assert (found.operation, found.dependency) == (".item()", None)
    assert found.reason == "several reads on this line are used differently"
    both_shown = used("print(x.item(), float(n))")
    assert (both_shown.operation, both_shown.dependency) == (None, "false")


def test_the_code_on_the_line_must_have_the_name() -> None:
    text = """\
    @decorate(a.item())
    class A(b.item()):
        c = d.item()

        def method(self, e=f.item()):
            def inner():
                return g.item()
            return h.item()

        async def later(self):
            await i.item()
    key = lambda j: j.item()
    """
    answers = {
        1: {"<module>"},
        2: {"<module>"},
        3: {"A"},
        5: {"A"},
        6: {"method"},
        7: {"inner"},
        8: {"method"},
        10: {"A"},
        11: {"later"},
        12: {"<module>", "<lambda>"},
    }
    names = {"<module>", "A", "method", "inner", "later", "<lambda>", "decorate", "", "<listcomp>"}
    file = parsed(text)
    for line in range(-1, 15):
        assert {name for name in names if file.use(name, line, "scalar")} == answers.get(line, set()), line
    in_lambda = file.use("<lambda>", 12, "scalar")
    around = file.use("<module>", 12, "scalar")
    assert in_lambda is not None and around is not None
    assert (in_lambda.operation, around.operation) == (".item()", None)


def test_a_comprehension_has_a_frame_of_its_own_or_not() -> None:
    text = """\
    def f(xs):
        return [
            x.item()
            for x in xs.tolist()
            if x.sum().item()
        ]
    """
    file = parsed(text)
    for name in ("<listcomp>", "f"):  # before 3.12, and since
        element = file.use(name, 3, "scalar")
        condition = file.use(name, 5, "scalar")
        assert element is not None and condition is not None
        assert (element.operation, element.dependency, condition.dependency) == (".item()", None, "true")
    assert file.use("<module>", 3, "scalar") is None
    first = parsed("def f(xs):\n    return sum(x\n      for x in\n      xs.item())")
    assert first.use("<genexpr>", 4, "scalar") is None
    assert first.use("f", 2, "scalar") is not None
    assert first.use("f", 4, "scalar") is not None
    generator = parsed("def f(xs):\n    return sum(\n      x.item() for x in xs)")
    assert generator.use("<genexpr>", 3, "scalar") is not None
    # `xs` itself is evaluated in f.
    in_f = generator.use("f", 3, "scalar")
    assert in_f is not None and in_f.operation is None
    for kind, name in (("{x.item() for x in xs}", "<setcomp>"), ("{x: x.item() for x in xs}", "<dictcomp>")):
        one = parsed(f"a = {kind}").use(name, 1, "scalar")
        assert one is not None and one.operation == ".item()"


def test_statements_over_several_lines() -> None:
    text = """\
    def f(x, y):
        print("a",
              x.item(),
              y.tolist())
        v = (x
             .sum()
             .item())
        if (x.item()
                > 3):
            pass
        return float(
            x.sum()
        )
    """
    file = parsed(text)

    def at(line: int, family: Family = "scalar") -> tuple[str | None, str | None, str]:
        found = file.use("f", line, family)
        assert found is not None
        return found.operation, found.dependency, found.text

    joined = 'print("a", x.item(), y.tolist())'
    assert at(2) == (None, None, joined)
    assert at(2, "other") == ("print()", "false", joined)
    assert at(3) == (".item()", "false", joined)
    assert at(4, "list") == (".tolist()", "false", joined)
    # From Python 3.10 on a method's line is that of its name, before that the first.
    assert at(7) == at(5) == (".item()", "false", "v = (x.sum().item())")
    assert at(8) == (".item()", "true", "if (x.item() > 3):")
    assert at(11) == ("float()", None, "return float(x.sum())")
    assert file.use("f", 13, "scalar") is None


def test_f_strings_over_several_lines() -> None:
    text = '''\
    def f(x, y):
        print(f"""
          loss {x.item()}
          more {y.item()}
        """)
        print(f"{x.item()} "
              f"{y.item()}")
    '''
    file = parsed(text)
    for line in (2, 3, 4, 6, 7):
        found = file.use("f", line, "scalar")
        assert found is not None
        assert (found.operation, found.dependency) == (".item()", "false"), line


def test_text_of_the_line() -> None:
    assert used("a = 1; b = x.item()").text == "a = 1; b = x.item()"
    assert used("foo(  # why\n  x.item())", line=3).text == "x.item())"
    assert used("foo(x,\n\n\n\n    x.item())", line=6).text == "x.item())"
    assert used("foo(x, \\\n    x.item())", line=3).text == "foo(x, x.item())"
    assert used(f"foo('{'a' * 300}', x.item())").text == f"foo('{'a' * 300}', x.item())"[: source.LINE_LENGTH] + "…"
    assert used("elsewhere = 1\nif x: return y.item()", line=3).text == "if x: return y.item()"


def test_lines_without_code_are_none() -> None:
    file = parsed("def f(x):\n    # comment\n\n    '''doc\n    string'''\n    return x.item()\n")
    for line in (0, 2, 3, 5, 7, 100, -3):
        for family in FAMILIES:
            assert file.use("f", line, family) is None


@pytest.mark.parametrize(
    "text",
    [
        "def f(:",
        "a\0b",
        "\ud800",
        "(" * 5000,
        "x = " + "-" * 5000 + "1",
        "x = " + "+".join(["a"] * 1000),
        "x = " + "f(a=" * 100 + "1" + ")" * 100,
        "# " + "a" * source.MAX_CHARACTERS,
    ],
)
def test_what_cannot_be_parsed_is_none(text: str) -> None:
    assert Source.parse(text) is None


def test_long_chains_of_elif_and_of_variables_end() -> None:
    chain = "if a: pass\n" + "".join(f"elif x.item() == {i}: pass\n" for i in range(60))
    found = parsed(chain).use("<module>", 60, "scalar")
    assert found is not None and found.dependency == "true"
    variables = "def f(x):\n    v0 = x.item()\n"
    variables += "".join(f"    v{i + 1} = v{i} + v{i} + v{i} + v{i}\n" for i in range(60)) + "    print(v60)\n"
    found = parsed(variables).use("f", 2, "scalar")
    assert found is not None and found.dependency is None


REAL_FILES = sorted(path for module in (json, logging) for path in Path(str(module.__file__)).parent.glob("*.py"))


@pytest.mark.parametrize("path", REAL_FILES)
def test_every_line_of_real_files(path: Path) -> None:
    text = path.read_text("utf-8")
    file = Source.parse(text)
    assert file is not None
    for line in range(text.count("\n") + 3):
        for family in FAMILIES:
            assert file.use("no such function", line, family) is None
            for name in ("<module>", "__init__", "<listcomp>"):
                file.use(name, line, family)


def lines_of(code: CodeType) -> Iterator[tuple[str, int]]:
    """The names and lines that frames may have, as the running Python's compiler says."""
    for _, _, line in code.co_lines():
        # What a function does before its first statement carries the line of its `def` or decorator.
        if line and (line != code.co_firstlineno or code.co_name.startswith("<")):
            yield code.co_name, line
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and not inner.co_name.startswith("<generic"):
            yield from lines_of(inner)


@pytest.mark.parametrize("path", [*REAL_FILES, Path(source.__file__), Path(__file__)])
def test_every_line_that_the_compiler_knows_is_found(path: Path) -> None:
    text = path.read_text("utf-8")
    file = parsed(text)
    missed = {at for at in lines_of(compile(text, "a.py", "exec")) if file.use(*at, "scalar") is None}
    assert not {at for at in missed if at[1] > 1 and at[0] not in {"__annotate__", "__conditional_annotations__"}}


PIECES = """def f(x): |class A: |return |x|.item()|print(|)|(|[|]|{|}|:|,|=|:=| if | else | for x in |lambda x: |f'{|}'
    | and | not | in |x[|x.cpu()|float(|\n|\n    |\n        |while |try:|except E:|match x:|case 1:|;|#|\\|\r\n|\x0c
    |async |await |yield |%|'a'|1|+|+=|*|global x|del x|@|with |pass|\t|break|é"""


@given(
    st.lists(st.sampled_from(PIECES.split("|")), max_size=40).map("".join) | st.text(),
    st.text(max_size=12),
    st.integers(),
    st.integers(0, 9),
)
def test_never_raises_and_claims_nothing_for_another_function(text: str, name: str, far: int, line: int) -> None:
    file = Source.parse(text)
    if file is None:
        return
    for family in FAMILIES:
        for function in (name, "<module>", "f", "A", "<lambda>", "<listcomp>", "<genexpr>"):
            for at in (line, far):
                file.use(function, at, family)
        if name not in text and name not in {"<module>", "<lambda>", "<listcomp>", "<genexpr>", "<setcomp>"}:
            assert file.use(name, line, family) is None


@given(st.lists(st.sampled_from(SHOWN + NEEDED + OPEN + [body for body, _ in FOLLOWED]), min_size=1, max_size=5))
def test_programs_put_together_never_raise(bodies: list[str]) -> None:
    lines = [line for body in bodies for line in body.splitlines()]
    file = Source.parse("def f(x, y, n, i, log, losses):\n" + "".join(f"    {line}\n" for line in lines))
    if file is None:
        return
    for line in range(len(lines) + 2):
        for family in FAMILIES:
            assert file.use("h", line, family) is None
            found = file.use("f", line, family)
            assert found is None or found.dependency in {"true", "false", None}
            assert found is None or (found.dependency is None) == (found.certainty == "open")


CAUSES = Path(__file__).parents[1] / "scripts" / "workloads" / "sync_causes.py"


@pytest.mark.parametrize(
    ("function", "family", "operation", "dependency"),
    [
        ("read_item", "scalar", ".item()", None),
        ("read_complex", "scalar", "complex()", None),
        ("read_list", "list", ".tolist()", None),
        ("branch_if", "truth", "if", "true"),
        ("branch_while", "truth", "while", "true"),
        ("branch_contains", "truth", "in", None),
        ("branch_all_builtin", "truth", "all()", None),
        ("print_tensor", "print", "print()", "false"),
        ("format_scalar", "scalar", "f-string", "false"),
        ("log_tensor", "print", "log.info()", "false"),
        ("log_item", "scalar", ".item()", "false"),
        ("print_item", "scalar", ".item()", "false"),
        ("copy_to_numpy", "download", ".cpu().numpy()", None),
        ("copy_to_numpy_by_force", "download", ".numpy()", None),
        ("copy_by_type_name", "download", ".type()", None),
        ("index_by_mask", "index", "x[mask]", None),
        ("slice_by_gpu_scalar", "index", "x[:n]", "true"),
        ("builtin_max", "truth", "max()", None),
        ("shape_repeat_interleave_known", "scalar", "int()", "true"),
    ],
)
def test_the_workload(function: str, family: Family, operation: str | None, dependency: str | None) -> None:
    text = CAUSES.read_text("utf-8")
    lines = text.splitlines()
    file = parsed(text)
    first = lines.index(f"def {function}():") + 2
    ends = [at for at in range(first, len(lines)) if not lines[at - 1].strip()]
    uses = [use for at in range(first, ends[0]) if (use := file.use(function, at, family)) is not None]
    assert operation in {use.operation for use in uses}
    assert [use.dependency for use in uses if use.operation == operation] == [dependency]
