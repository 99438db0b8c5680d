"""Walking a directory: every file once, no link out of it, and what vanishes is counted."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from wrasse.errors import UsageError
from wrasse.jobs.file_producer.files import FileRules, Skipped
from wrasse.jobs.file_producer.producer import DEPTH_MAX, Scope, WalkedPaths, check_directory, directories, walk

ALL = FileRules.of((), (), ())


def fill(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def found(root: Path, rules: FileRules = ALL, seen: WalkedPaths | None = None, **more: int) -> list[str]:
    files = walk(Scope(str(root), rules, **more), seen or WalkedPaths())
    return sorted(os.path.relpath(file.path, root) for file in files if file is not None)


def test_every_file_is_found_once_with_its_absolute_path_and_size(tmp_path: Path) -> None:
    fill(tmp_path, "a", "b/c", "b/d/e")
    files = [file for file in walk(Scope(str(tmp_path), ALL), WalkedPaths()) if file is not None]
    assert {file.path: file.size for file in files} == {
        str(tmp_path / "a"): 1, str(tmp_path / "b/c"): 3, str(tmp_path / "b/d/e"): 5,
    }  # fmt: skip


def test_what_is_excluded_is_counted_and_a_tree_of_it_is_not_entered(tmp_path: Path) -> None:
    fill(tmp_path, "a.txt", "b.tmp", "node/x/y/z", "node/w")
    seen = WalkedPaths()
    assert found(tmp_path, FileRules.of((), ("*.tmp", "node/**"), ()), seen) == ["a.txt"]
    assert seen.skipped == {Skipped.EXCLUDED: 2}


def test_a_link_out_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "in", tmp_path / "out"
    fill(root, "a")
    fill(outside, "secret")
    (root / "file").symlink_to(outside / "secret")
    (root / "dir").symlink_to(outside)
    (root / "nowhere").symlink_to(tmp_path / "missing")
    (root / "round").symlink_to(root / "round")
    (root / "sneaky").symlink_to("../in-not/../out/secret")
    seen = WalkedPaths()
    assert found(root, seen=seen) == ["a"]
    assert seen.skipped == {Skipped.OUTSIDE: 5}


def test_a_sibling_whose_name_begins_alike_is_outside(tmp_path: Path) -> None:
    fill(tmp_path, "in/a", "in-side/b")
    (tmp_path / "in/link").symlink_to(tmp_path / "in-side/b")
    assert found(tmp_path / "in") == ["a"]


def test_a_link_to_a_file_within_is_found_under_its_own_name(tmp_path: Path) -> None:
    fill(tmp_path, "a/b")
    (tmp_path / "link").symlink_to(tmp_path / "a/b")
    (tmp_path / "tree").symlink_to(tmp_path / "a")
    seen = WalkedPaths()
    assert found(tmp_path, seen=seen) == ["a/b", "link"]
    assert seen.skipped == {Skipped.LINKED: 1}


def test_a_root_that_is_a_link_is_walked(tmp_path: Path) -> None:
    fill(tmp_path, "real/a")
    (tmp_path / "in").symlink_to(tmp_path / "real")
    assert found(tmp_path / "in") == ["a"]


def test_what_vanishes_during_the_walk_is_counted(tmp_path: Path) -> None:
    fill(tmp_path, *(f"f{number:03}" for number in range(50)), "dir/x")
    seen = WalkedPaths()
    walking = walk(Scope(str(tmp_path), ALL), seen)
    first = next(file for file in walking if file is not None)
    for path in tmp_path.iterdir():
        if str(path) != first.path and path.is_file():
            path.unlink()
    rest = [file for file in walking if file is not None and "/dir/" not in file.path]
    assert len(rest) + seen.skipped[Skipped.VANISHED] + 1 >= 50
    assert seen.skipped[Skipped.VANISHED] > 0


def test_what_is_no_file_is_counted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        seen = WalkedPaths()
        assert found(tmp_path, seen=seen) == []
    assert seen.skipped == {Skipped.SPECIAL: 2}


def test_a_name_that_is_no_text_is_counted(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/bad-\xff", "wb"):
        pass
    seen = WalkedPaths()
    assert found(tmp_path, seen=seen) == []
    assert seen.skipped == {Skipped.UNNAMEABLE: 1}


def test_a_directory_below_too_many_others_is_counted(tmp_path: Path) -> None:
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        for _ in range(DEPTH_MAX + 5):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    seen = WalkedPaths()
    assert found(tmp_path, seen=seen) == []
    assert seen.skipped == {Skipped.TOO_DEEP: 1}


NEVER = 2**62


def test_what_came_with_its_directory_is_found_though_it_did_not_change(tmp_path: Path) -> None:
    root = tmp_path / "in"
    fill(root, "old", "sub/old")
    fill(tmp_path, "elsewhere/moved")
    seen = WalkedPaths()
    seen.directories = set()
    assert found(root, seen=seen) == ["old", "sub/old"]
    (tmp_path / "elsewhere").rename(root / "came")
    assert found(root, seen=seen, since=NEVER) == ["came/moved"]
    assert found(root, seen=seen, since=NEVER) == []


def test_what_changed_since_is_found_again(tmp_path: Path) -> None:
    fill(tmp_path, "a")
    changed = (tmp_path / "a").stat().st_ctime_ns
    seen = WalkedPaths()
    seen.directories = set()
    assert found(tmp_path, seen=seen) == ["a"]
    assert found(tmp_path, seen=seen, since=changed) == ["a"]
    assert found(tmp_path, seen=seen, since=changed + 1) == []


def test_what_may_still_be_written_to_is_left_for_later(tmp_path: Path) -> None:
    fill(tmp_path, "a")
    changed = (tmp_path / "a").stat().st_ctime_ns
    seen = WalkedPaths()
    assert found(tmp_path, seen=seen, settled=changed - 1) == []
    assert (seen.unsettled, found(tmp_path, settled=changed)) == (1, ["a"])


def test_directories_come_before_those_below_them_without_excluded_trees(tmp_path: Path) -> None:
    fill(tmp_path, "a/b/x", "c/x", "no/x")
    ways = list(directories(Scope(str(tmp_path), FileRules.of((), ("no/**",), ()))))
    assert sorted(ways) == ["", "a", "a/b", "c"]
    assert ways.index("a") < ways.index("a/b")


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_missing_directory_is_one_error_with_a_way_out(tmp_path: Path, name: str) -> None:
    fill(tmp_path, "file")
    with pytest.raises(UsageError, match=r"scan_dir") as raised:
        check_directory(str(tmp_path / name))
    assert "producer.scan_dir" in raised.value.do
