"""Which source files are read: those that ran, as far as can be told, and never anything that blocks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsys_sync import source_files
from nsys_sync.source_files import SourceFile, paths_below, read_sources

CAPTURE = "2025-11-20T10:11:12+00:00"
CAPTURE_SECONDS = 1763633472


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return write(tmp_path / "train.py")


def write(path: Path, content: bytes = b"x = 1\n", changed: float = CAPTURE_SECONDS - 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (changed, changed))
    return path


def read(path: Path | str) -> SourceFile | None:
    return read_sources([str(path)], CAPTURE, None).get(str(path))


def under(root: Path, path: str) -> str | None:
    found = read_sources([path], None, root).get(path)
    assert found is None or found.basis == "found under --source-root"
    return found.text if found else None


def test_a_file_unchanged_since_the_capture(script: Path) -> None:
    assert read(script) == SourceFile("x = 1\n", "unchanged since the capture")


@pytest.mark.parametrize("start", [None, "", "yesterday", "2025-11-20T10:11:11+00:00"])
def test_a_file_that_may_have_changed_is_not_read(script: Path, start: str | None) -> None:
    assert read_sources([str(script)], start, None) == {}


@pytest.mark.parametrize(
    "start",
    [
        "2025-11-20T10:11:12Z",
        "2025-11-20T10:11:12",
        "2025-11-20T10:11:12.123456789Z",
        "2025-11-20T10:11:12.5+00:00",
        "2025-11-20T12:11:12+02:00",
    ],
)
def test_iso_times(script: Path, start: str) -> None:
    assert str(script) in read_sources([str(script)], start, None)
    os.utime(script, (CAPTURE_SECONDS + 1, CAPTURE_SECONDS + 1))
    assert read_sources([str(script)], start, None) == {}


def test_changed_when_the_capture_began(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.py", changed=CAPTURE_SECONDS)) is None


def test_only_python_files(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.pyw")) is not None
    for name in ("a.txt", "a", "a.pyc", "a.so", ".py"):
        assert read(write(tmp_path / name)) is None, name


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.py")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    (tmp_path / "device.py").symlink_to("/dev/zero")
    (tmp_path / "waits.py").symlink_to(tmp_path / "fifo.py")
    names = ["fifo.py", "folder.py", "dangling.py", "loop.py", "device.py", "waits.py", "missing.py"]
    paths = [str(tmp_path / name) for name in names]
    assert read_sources(paths, "2999-01-01", None) == {}
    assert read_sources(paths, None, tmp_path) == {}


def test_a_link_is_read_where_it_leads(tmp_path: Path, script: Path) -> None:
    (tmp_path / "link.py").symlink_to(script)
    assert read(tmp_path / "link.py") is not None


def test_large_files(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.py", b"#" * source_files.MAX_BYTES)) is not None
    assert read(write(tmp_path / "b.py", b"#" * (source_files.MAX_BYTES + 1))) is None


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(script: Path) -> None:
    script.chmod(0)
    assert read(script) is None


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("é = 1\n".encode(), "é = 1\n"),
        (b"# coding: latin-1\n\xe9 = 1\n", "# coding: latin-1\né = 1\n"),
        ("\ufeffé = 1\r\ny\r".encode(), "é = 1\ny\n"),
        (b"\xe9 = 1\n", None),
        (b"# coding: no-such-coding\n", None),
        (b"# coding: rot13\nk = 1\n", None),
        (b"\xef\xbb\xbf# coding: latin-1\n", None),
        (b"# coding: utf-8\n\xe9\n", None),
        (b"", ""),
    ],
)
def test_codings(tmp_path: Path, content: bytes, text: str | None) -> None:
    found = read(write(tmp_path / "a.py", content))
    assert (found and found.text) == text


@pytest.mark.parametrize(
    "path",
    [
        "train.py",
        "./train.py",
        "<ipython-input-3-abc>",
        "<string>",
        "[unknown file]",
        "",
        "/",
        ".",
        "a\0b.py",
        "/a\0b.py",
        "file:///train.py",
        "https://example.com/train.py",
        "C:\\work\\train.py",
        "/" + "a" * 5000 + ".py",
        "/\udcff.py",
        "/\ud800.py",
    ],
)
def test_paths_that_name_no_file_here(path: str, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(script.parent)
    assert read(path) is None


def test_the_longest_end_of_the_path_under_a_root(tmp_path: Path) -> None:
    write(tmp_path / "repo" / "pkg" / "train.py", b"short")
    root = tmp_path / "repo"
    assert under(root, "/home/ci/build/pkg/train.py") == "short"
    assert under(root, "pkg/train.py") == under(root, "./pkg/train.py") == "short"
    write(root / "build" / "pkg" / "train.py", b"long")
    assert under(root, "/home/ci/build/pkg/train.py") == "long"
    assert under(root, "/home/ci/pkg/other.py") is None
    assert under(root, "C:\\work\\pkg\\train.py") == "short"
    assert under(root, "\\\\server\\share\\pkg\\train.py") == "short"
    for path in ("<ipython-input-3-abc>", "[unknown file]", "http://pkg/train.py", "/", ""):
        assert under(root, path) is None, path


def test_a_root_is_used_alone_and_whatever_the_time(tmp_path: Path, script: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert read_sources([str(script)], CAPTURE, tmp_path / "empty") == {}
    os.utime(script, (CAPTURE_SECONDS + 9, CAPTURE_SECONDS + 9))
    assert list(read_sources([str(script)], CAPTURE, tmp_path)) == [str(script)]
    assert read_sources([str(script)], CAPTURE, tmp_path / "missing") == {}
    assert read_sources([str(script)], CAPTURE, script) == {}


def test_a_bare_name_must_be_the_only_one(tmp_path: Path) -> None:
    write(tmp_path / "train.py", b"top")
    assert under(tmp_path, "/build/train.py") == "top"
    assert under(tmp_path, "train.py") == "top"
    write(tmp_path / "old" / "train.py", b"old")
    assert under(tmp_path, "/build/train.py") is None
    assert under(tmp_path, "/build/old/train.py") == "old"
    # Where the path itself says that it is at the top, there is nothing to guess but for the root.
    write(tmp_path / "deep" / "only.py", b"deep")
    assert under(tmp_path, "/build/only.py") is None


def test_a_root_too_large_to_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "train.py")
    write(tmp_path / "pkg" / "a.py")
    monkeypatch.setattr(source_files, "MAX_WALKED", 2)
    assert under(tmp_path, "/build/train.py") is None
    assert under(tmp_path, "/build/pkg/a.py") == "x = 1\n"


def test_nothing_outside_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root / "pkg" / "a.py", b"inside")
    write(tmp_path / "secret.py", b"outside")
    write(tmp_path / "other" / "b.py", b"outside")
    (root / "link.py").symlink_to(tmp_path / "secret.py")
    (root / "sub").symlink_to(tmp_path / "other")
    (root / "inner.py").symlink_to(root / "pkg" / "a.py")
    for path in ("../secret.py", "/x/../secret.py", "pkg/../../secret.py", "/x/link.py", "/x/sub/b.py", "sub/b.py"):
        assert under(root, path) is None, path
    assert under(root, "/x/../pkg/a.py") == "inside"
    assert under(root, "/x/inner.py") == "inside"


def test_many_paths_each_once(tmp_path: Path, script: Path) -> None:
    other = write(tmp_path / "b.py", b"y = 2\n")
    found = read_sources([str(script), "missing.py", str(other), str(script)], CAPTURE, None)
    assert list(found) == [str(script), str(other)]


@given(st.lists(st.text(max_size=40).map(lambda text: f"/{text}.py") | st.text(max_size=40)), st.text(max_size=30))
def test_any_text_is_a_path_or_is_not(paths: list[str], start: str) -> None:
    for when in (start, CAPTURE):
        for root in (None, Path(__file__).parent / "no such folder"):
            assert not set(read_sources(paths, when, root)) - set(paths)


def test_files_of_a_trace_in_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "home" / "repository"
    for name in ("src/pkg/a.py", "b.py", ".venv/lib/c.py", "twice.py", "src/twice.py", "src/once.py"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("")
    (tmp_path / "outside.py").write_text("")
    (repository / "link.py").symlink_to(tmp_path / "outside.py")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    expected = {
        f"{repository}/src/pkg/a.py": "src/pkg/a.py",
        "~/repository/src/pkg/a.py": "src/pkg/a.py",
        f"{repository}/twice.py": "twice.py",
        "/elsewhere/checkout/src/pkg/a.py": "src/pkg/a.py",
        "C:\\checkout\\src\\pkg\\a.py": "src/pkg/a.py",
        "/elsewhere/b.py": "b.py",
    }
    others = [
        *("/elsewhere/twice.py", "/elsewhere/once.py", f"{repository}/.venv/lib/c.py", str(tmp_path / "outside.py")),
        *("/x/link.py", "<string>", "", "/x/none.py", "../outside.py", "~nobody/b.txt", "a\0.py"),
    ]
    assert paths_below([*expected, *others], repository, repository) == expected
    below_src = paths_below(["/elsewhere/once.py", "/elsewhere/b.py"], repository / "src", repository)
    assert below_src == {"/elsewhere/once.py": "src/once.py"}
    assert paths_below(["/elsewhere/once.py"], repository / "src", tmp_path / "home" / "other") == {}
