"""What the search for orphans keeps outside SQLite: the trash, plans, and sightings on PostgreSQL."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from cli.command_line import wrasse
from conformance.sightings_stores import fresh_postgres
from orphans.test_commands import place as place, planned
from wire.conftest import Difference
from wire.dumps import Item, as_text, directory_items, shown
from wire.placeholders import Placeholders
from wire.sqlite_before import orphans
from wrasse.backends.sql.sightings import PostgresSightings

# What follows from the moment and the inode of files, or from how long the command took.
_OF_THIS_FILE = re.compile(r'"(tick|sha256|fingerprint)":(?:\d+|"[0-9a-f]+")')


def test_the_trash_and_plans_are_stored_as_recorded(place: Path, difference: Difference) -> None:
    names = Placeholders(datetime.now(UTC))
    plan = planned(place)
    assert wrasse("orphans", "apply", "plan.jsonl").code == 0
    lines = [_OF_THIS_FILE.sub(r'"\1":‹of this run›', shown(line)) for line in plan.read_bytes().splitlines()]
    items = [Item("plan.jsonl", "file", lines)]
    assert not difference("orphans_directory", as_text([*items, *directory_items(place / "wrasse-data")], names))


async def test_sightings_on_postgresql_are_stored_as_recorded(postgres_url: str, difference: Difference) -> None:
    names = Placeholders(datetime.now(UTC))
    async with fresh_postgres(postgres_url) as url:
        kept = await PostgresSightings.open(url)
        await orphans(kept)
        await kept.close()
        items = _tables(url)
    assert not difference("sightings_postgresql", as_text(items, names))


def _tables(url: str) -> list[Item]:
    """Every table of the schema with its columns and rows."""
    found = []
    with psycopg.connect(url) as db:
        mine = "FROM information_schema.columns WHERE table_schema = current_schema()"
        for (table,) in db.execute(f"SELECT DISTINCT table_name {mine} ORDER BY 1").fetchall():
            columns = db.execute(
                f"SELECT column_name, data_type, is_nullable {mine} AND table_name = %s ORDER BY ordinal_position",
                [table],
            ).fetchall()
            lines = [f"column {name} {kind}{'' if null == 'YES' else ' NOT NULL'}" for name, kind, null in columns]
            rows = db.execute(f'SELECT * FROM "{table}" ORDER BY 1, 2').fetchall()  # type: ignore[arg-type]
            lines += [" | ".join(_cell(cell) for cell in row) for row in rows]
            found.append(Item(str(table), "table", lines))
    return found


def _cell(cell: object) -> str:
    return shown(bytes(cell)) if isinstance(cell, bytes | memoryview) else str(cell)
