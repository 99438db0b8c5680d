"""The journal on SQLite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import apsw

from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import ManualClock
from wrasse.ports.journal import Intent, LineFilter


async def test_lines_are_stored_under_the_stored_names_and_found_under_those_of_the_program(tmp_path: Path) -> None:
    path = tmp_path / "wrasse.db"
    store = await Sqlite.open(path, ManualClock())
    given = Intent("1", "run", "orphan_objects@root", "dead_letter", "a", "because")
    await store.journal.intend([given, replace(given, id="2", sweep="orphan_archives@root", verb="bury")])
    found = await store.journal.page(LineFilter(sweep="orphan_objects@root"), None, 10)
    assert [line.intent for line in found] == [given, replace(given, id="2")]
    await store.close()
    with apsw.Connection(str(path)) as db:
        assert db.execute("SELECT DISTINCT sweep, verb FROM lines").fetchall() == [("orphan_archives@root", "bury")]
