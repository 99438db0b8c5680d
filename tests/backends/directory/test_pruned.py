"""Directories that become empty are removed; a writer makes its own again, all the way up."""

from __future__ import annotations

from pathlib import Path

import pytest

from wrasse.backends.directory.connect import Directory
from wrasse.backends.directory.files import Files
from wrasse.clock import ManualClock


class Pruned(Files):
    """Just before the folder `c` is made, another process removes those above it, which are empty."""

    left = 1

    def make_folder(self, path: bytes) -> None:
        if path == b"a/b/c" and self.left:
            self.left -= 1
            assert (self.remove_folder(b"a/b"), self.remove_folder(b"a")) == (True, True)
        super().make_folder(path)


@pytest.mark.parametrize("times", [1, 3])
async def test_an_object_is_created_although_another_process_removes_its_folders(
    tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pruned, "left", times)
    directory = await Directory.open(tmp_path, ManualClock(), files=Pruned)
    stored = await directory.objects.create("a/b/c/d", b"1")
    found = await directory.objects.head("a/b/c/d")
    await directory.close()
    assert (bool(stored), found is not None) == (True, True)
