"""The law of the job tables: every job is in exactly one state, and the counts by state are right.

Read with a connection of its own, from whatever state the file was left in.
"""

from __future__ import annotations

from pathlib import Path

import apsw


def broken_laws(path: Path) -> list[str]:
    """What is wrong with the database; empty if nothing is."""
    db = apsw.Connection(str(path))
    try:
        wrong = [f"integrity: {text}" for (text,) in db.execute("PRAGMA integrity_check") if text != "ok"]
        counted = set(db.execute("SELECT queue, state, count(*) FROM jobs GROUP BY queue, state"))
        noted = set(db.execute("SELECT queue, state, n FROM counts WHERE n > 0"))
        if counted != noted:
            wrong.append(f"counts say {sorted(noted)} and the jobs are {sorted(counted)}")
        wrong += [f"{what}: {', '.join(ids)}" for what, sql in _LAWS if (ids := [id for (id,) in db.execute(sql)])]
    finally:
        db.close()
    return wrong


def stored_ids(path: Path) -> set[str]:
    """The ids of all jobs in the file."""
    db = apsw.Connection(str(path))
    try:
        return {id for (id,) in db.execute("SELECT id FROM jobs")}
    finally:
        db.close()


_LAWS = (
    (
        "held without a deadline, or the other way round",
        "SELECT id FROM jobs WHERE (state = 2) <> (deadline IS NOT NULL)",
    ),
    ("finished without a time, or the other way round", "SELECT id FROM jobs WHERE (state >= 3) <> (finished_at > 0)"),
    ("no payload", "SELECT id FROM jobs WHERE payload IS NULL AND seq NOT IN (SELECT seq FROM payloads)"),
    ("a payload without a job", "SELECT CAST(seq AS TEXT) FROM payloads WHERE seq NOT IN (SELECT seq FROM jobs)"),
    ("history without a job", "SELECT CAST(seq AS TEXT) FROM attempts WHERE seq NOT IN (SELECT seq FROM jobs)"),
    ("two jobs with one turn", "SELECT min(id) FROM jobs WHERE state = 0 GROUP BY queue, rank HAVING count(*) > 1"),
    ("a number not yet drawn", "SELECT id FROM jobs, numbers WHERE max(seq, token, rank) >= back OR rank <= front"),
)
