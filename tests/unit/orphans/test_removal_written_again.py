"""What was moved to the trash and written again since: what stands at its key is the truth; its copy goes in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from orphan_field import DAY, HOUR, SEED, Field, at_key
from wrasse.orphans.removal import Removal, Trash
from wrasse.ports.journal import LineFilter
from wrasse.ports.objects import ObjectDelete


@pytest.fixture
async def field(tmp_path: Path) -> Field:
    """An archive in the trash that was written again and is referenced now."""
    field = Field(tmp_path, SEED)
    await field.put("ws1", "old")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    await field.run()
    await field.run(after=2 * HOUR)
    assert len(await field.trash()) == 2
    await field.put("ws1", "old", data=b"other bytes of ")
    field.refer("ws1", "old")
    return field


async def restores(field: Field) -> list[str]:
    lines = await field.journal.page(LineFilter(), None, 100)
    return [str(line.outcome) for line in lines if line.intent.verb == "restore"]


async def test_its_restore_is_tried_once_and_not_at_every_look(field: Field) -> None:
    for _ in range(3):
        assert not (await field.run(after=HOUR)).errors
    assert await restores(field) == ["conflict"]
    assert await content(field, "home.tar.gz") == b"other bytes of home.tar.gz"


async def test_its_copy_goes_after_the_time_in_quarantine(field: Field) -> None:
    await field.run(after=HOUR)
    await field.run(after=6 * DAY)
    assert len(await field.trash()) == 2
    await field.run(after=2 * DAY)
    assert await field.trash() == []
    assert await content(field, "home.tar.gz") == b"other bytes of home.tar.gz"


async def test_its_copy_stays_if_what_was_written_again_is_gone(field: Field) -> None:
    await field.run(after=HOUR)
    key = at_key("ws1", "old")
    head = await field.objects.head(key)
    assert head is not None
    await field.objects.delete([ObjectDelete(key, head.info.version)])
    await field.run(after=8 * DAY)
    assert await content(field, "home.tar.gz") == b"homehome.tar.gz"


async def test_a_move_that_meets_a_new_file_keeps_track_of_the_copies_that_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = Field(tmp_path, SEED)
    await field.put("ws1", "old")
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.arm()
    await field.run()
    with monkeypatch.context() as cut:
        cut.setattr(Trash, "put", dies_after_the_marker)
        await field.run(after=2 * HOUR)
    assert len(await field.trash()) == 1
    with monkeypatch.context() as late:
        late.setattr(Trash, "put", somebody_writes_first)
        await field.run(after=HOUR)
    assert len(await field.trash()) == 1
    for gap in (8 * DAY, HOUR, 3 * HOUR, 8 * DAY):
        await field.run(after=gap)
    assert (await field.trash(), len(await field.keys())) == ([], 2)


_put = Trash.put


async def dies_after_the_marker(self: Trash, round: str, files: list[object]) -> object:
    """A run that is cut short: its first file has been moved, and it never got further."""
    await _put(self, round, files[1:])  # type: ignore[arg-type]
    raise RuntimeError("cut short")


async def somebody_writes_first(self: Trash, round: str, files: list[object]) -> object:
    """Between the last scan and the move all of the unit is written anew."""
    key = at_key("ws1", "old")
    head = await self._objects.head(key)
    assert head is not None
    assert await self._objects.replace(key, b"new data", at=head.info.version)
    assert await self._objects.create(f"{key}.meta", b"new marker")
    return await _put(self, round, files)  # type: ignore[arg-type]


async def test_a_copy_is_not_discarded_once_what_was_written_again_is_gone(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    await field.run(after=HOUR)
    monkeypatch.setattr(Removal, "_discard", somebody_deletes_first)
    await field.run(after=8 * DAY)
    assert len(await field.trash()) == 2


_discard = Removal._discard


async def somebody_deletes_first(self: Removal, units: list[object]) -> object:
    """Between the scan and the removal the new data goes."""
    key = at_key("ws1", "old")
    head = await self._objects.head(key)
    assert head is not None
    await self._objects.delete([ObjectDelete(key, head.info.version)])
    return await _discard(self, units)  # type: ignore[arg-type]


async def content(field: Field, file: str) -> bytes:
    return b"".join([chunk async for chunk in field.objects.read(at_key("ws1", "old", file))])
