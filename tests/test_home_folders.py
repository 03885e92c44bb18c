"""User names in paths, wherever the home folders are mounted."""

from __future__ import annotations

import time

import pytest

from nsys_sync.analysis.user_code import shown
from nsys_sync.home_folders import without_home_folders

HIDDEN = {
    "/home/alice/x.py": "~/x.py",
    "/home/alice": "~",
    "/home//alice/x.py": "~/x.py",
    "//home/alice/x.py": "~/x.py",
    "/home/./alice/x.py": "~/x.py",
    "/home/../home/alice/x.py": "~/x.py",
    "/home/bob/../alice/x.py": "~/x.py",
    "/home/alice.py/x.py": "~/x.py",
    "/var/home/alice/x.py": "~/x.py",
    "/usr/home/alice/x.py": "~/x.py",
    "/data/home/alice/x.py": "~/x.py",
    "/export/home/alice": "~",
    "/nfs/homes/alice/x.py": "~/x.py",
    "/net/server/export/home/alice/x.py": "~/x.py",
    "/root/x.py": "~/x.py",
    "/Users/alice/x.py": "~/x.py",
    "/users/alice/x.py": "~/x.py",
    "/Volumes/disk/Users/alice/x.py": "~/x.py",
    "/mnt/c/Users/alice/x.py": "~/x.py",
    "/mnt/c/users/alice/x.py": "~/x.py",
    "/cygdrive/c/Users/alice/x.py": "~/x.py",
    "C:\\Users\\alice\\x.py": "~\\x.py",
    "C:\\\\Users\\\\alice\\\\x.py": "~\\\\x.py",
    "C:\\Users\\Alice Smith\\x.py": "~\\x.py",
    "c:/users/alice/x.py": "~/x.py",
    "D:\\home\\alice\\x.py": "~\\x.py",
    "\\\\srv\\home\\alice\\x.py": "~\\x.py",
    "file:///home/alice/x.py": "file:~/x.py",
    "ssh://host/home/alice/x.py": "ssh:~/x.py",
    "load '/home/alice/x' and /home/bob, (/data/home/carol)": "load '~/x' and ~, (~)",
    "PATH=/usr/bin:/home/alice/bin:/root/bin": "PATH=/usr/bin:~/bin:~/bin",
}
STAYS = [
    "~/x.py",
    "~/home/lib/x.py",
    "/home",
    "/home/train.py",
    "/workspace/home.py",
    "/workspace/home/views.py",
    "/workspace/home/core/views.py",
    "/opt/home/lib/x.py",
    "/app/users/models.py",
    "/srv/app/users/models.py",
    "/usr/lib/python3/dist-packages/home/core/x.py",
    "home/alice/x.py",
    "/rooted/x.py",
    "https://docs.nvidia.com/nsight-systems/home/guide",
    "http://pytorch.org/Users/guide",
    "<module>",
]
LONG = [
    "/",
    "\\",
    "/a",
    " /",
    "/home/",
    "/./",
    "c:/",
    "C:\\Users\\",
    "/home/a/../",
    "/home/..",
    ":/a/b/c",
    "/home/.py",
    "a",
]


@pytest.mark.parametrize("text", HIDDEN)
def test_a_users_name_is_hidden(text: str) -> None:
    assert without_home_folders(text) == shown(text, {}) == HIDDEN[text]


@pytest.mark.parametrize("text", [*STAYS, *HIDDEN.values()])
def test_what_names_nobody_stays(text: str) -> None:
    assert without_home_folders(text) == text


@pytest.mark.parametrize("part", LONG)
def test_a_name_of_a_megabyte_takes_no_time(part: str) -> None:
    begun = time.perf_counter()
    without_home_folders(part * (1_000_000 // len(part)))
    without_home_folders("/home/" + part * (1_000_000 // len(part)))
    assert time.perf_counter() - begun < 10
