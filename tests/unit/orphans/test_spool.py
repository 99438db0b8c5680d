"""Spools: whole or an error, never shorter; what a dead process left is cleared, what a live one uses is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from wrasse.errors import StoreBroken, UsageError
from wrasse.orphans.scan import Workplace
from wrasse.orphans.spool import Spool, SpooledObject, SpoolWriter

ROWS = [SpooledObject(f"key-{n}".encode() + b"\xff", n, f"v{n}", n) for n in range(2_500)]
SCAN_ID = "01KD3Z8Q6Y8M5B9W0X2V7T4N1"


def written(path: Path) -> Path:
    writer: SpoolWriter[SpooledObject] = SpoolWriter(path)
    for row in ROWS:
        writer.add(row)
    writer.close()
    return path


def test_what_is_written_is_read_back_any_number_of_times(tmp_path: Path) -> None:
    spool = Spool(written(tmp_path / "s"), SpooledObject)
    assert list(spool) == ROWS
    assert list(spool) == ROWS


def test_a_spool_that_was_not_completed_never_gets_its_name(tmp_path: Path) -> None:
    writer: SpoolWriter[SpooledObject] = SpoolWriter(tmp_path / "s")
    writer.write(ROWS)
    writer.drop()
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("cut", [1, 4, 100, 30_000])
def test_a_spool_that_was_cut_is_an_error_and_not_a_shorter_one(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "s")
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(StoreBroken, match="damaged"):
        list(Spool(path, SpooledObject))


def test_a_damaged_frame_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "s")
    path.write_bytes(path.read_bytes()[:4] + b"\xc1" * 10 + path.read_bytes()[14:])
    with pytest.raises(StoreBroken, match="damaged"):
        list(Spool(path, SpooledObject))


def test_what_a_dead_process_left_is_cleared_and_what_a_live_one_uses_is_not(tmp_path: Path) -> None:
    place = Workplace(tmp_path, "root")
    with place.opened(SCAN_ID + "A") as mine:
        left = tmp_path / "root" / (SCAN_ID + "B")
        left.mkdir()
        (left / "lock").touch()
        with place.opened(SCAN_ID + "C"):
            assert mine.exists()
            assert not left.exists()
    assert list((tmp_path / "root").iterdir()) == []


def test_of_protected_lists_only_the_last_are_kept(tmp_path: Path) -> None:
    place = Workplace(tmp_path, "root")
    for letter in "ABCD":
        with place.opened(SCAN_ID + letter) as here:
            (here / "protected").touch()
            place.keep_protected(here / "protected", SCAN_ID + letter)
    with place.opened(SCAN_ID + "E"):
        assert place.protected(SCAN_ID + "A") is None
        assert place.protected(SCAN_ID + "D") is not None


def test_a_file_where_the_directory_belongs_is_told(tmp_path: Path) -> None:
    (tmp_path / "spool").touch()
    place = Workplace(tmp_path / "spool", "root")
    with pytest.raises(UsageError, match="cannot be a spool directory"), place.opened(SCAN_ID + "A"):
        pass
