"""The archiver on SQLite: a stream into durable jsonl.gz files, beside a loop that does the same reads, checks, gzip,
put and cursor on one connection, and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import cast

import apsw
from isal import isal_zlib

from bench.archiver import stored
from bench.archiver_scene import SUBJECT, Place, archive_sqlite, fill_sqlite
from bench.measure import Benchmark, Rate, Ratio, Result, seconds, take_turns
from wrasse.streams.envelope import are_envelopes

LARGE, PAGE = 50_000, 1_000
_READ = """
    SELECT ms || '-' || seq, body, ms, seq FROM entries
    WHERE stream = ? AND (ms, seq) > (?, ?) ORDER BY ms, seq LIMIT ?
"""
Row = tuple[str, bytes, int, int]


def run(quick: bool) -> Result:
    """Drains copies of the same database in turns."""
    count = 100_000 if quick else 300_000
    with tempfile.TemporaryDirectory(prefix="wrasse-bench-") as made:
        original = Path(made) / "wrasse.db"
        asyncio.run(fill_sqlite(original, count))

        def ours(place: Path) -> float:
            shutil.copy(original, place / "wrasse.db")
            return asyncio.run(archive_sqlite(place / "wrasse.db", Place(place / "data"), LARGE, count))

        def raw(place: Path) -> float:
            shutil.copy(original, place / "wrasse.db")
            return seconds(lambda: _raw(place, count))

        took = take_turns({"wrasse": ours, "raw": raw}, 3 if quick else 5)
    rates = tuple(Rate(who, count / each, "messages/s") for who, each in took.items())
    return Result(BENCHMARK.name, BENCHMARK.about, rates, (Ratio("wrasse to raw", took["raw"] / took["wrasse"], 0.7),))


BENCHMARK = Benchmark("archiver_sqlite", "a stream on SQLite into archives, about 300 bytes a message", run)


def _raw(place: Path, count: int) -> None:
    db = apsw.Connection(str(place / "wrasse.db"))
    db.pragma("synchronous", "full")
    db.execute("CREATE TABLE cursor (ms INTEGER, seq INTEGER)")
    stream = db.execute("SELECT id FROM streams WHERE subject = ?", (SUBJECT,)).get
    ms = seq = done = 0
    while done < count:
        digest, parts, start, size = hashlib.sha256(), list[bytes](), seq, 0
        press = isal_zlib.compressobj(1, isal_zlib.DEFLATED, 31)
        while size < LARGE and done < count:
            rows = cast(list[Row], db.execute(_READ, (stream, ms, seq, PAGE)).fetchall())
            bodies = [body for _, body, _, _ in rows]
            every = b"".join(bodies)
            plain = every.isascii() and b"\n" not in every and b"\r" not in every and b"\\" not in every
            assert plain, "as they were made"
            assert b"stream_id" not in every, "as they were made"
            assert are_envelopes(bodies), "as they were made"
            data = b"".join([body[:-1] + b',"stream_id":"' + id.encode() + b'"}\n' for id, body, _, _ in rows])
            digest.update(data)
            parts.append(press.compress(data))
            ms, seq, size, done = rows[-1][2], rows[-1][3], size + len(rows), done + len(rows)
        parts.append(press.flush())
        stored(place, f"after-{start}.jsonl.gz", b"".join(parts))
        db.execute("INSERT INTO cursor VALUES (?, ?)", (ms, seq))
    db.close()
