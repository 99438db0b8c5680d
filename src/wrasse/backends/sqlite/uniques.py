"""Names of which there may be one job at a time. For the writer."""

from __future__ import annotations

from wrasse.backends.sqlite.rows import span
from wrasse.backends.sqlite.step import Step
from wrasse.ports.jobs import Job

_FORGOTTEN = 2  # names looked at for every new one
# With an end, it is the time that counts; without one, whether the job is still to be done.
_COUNTS = """
    CASE WHEN until IS NULL THEN EXISTS (SELECT 1 FROM jobs WHERE jobs.id = uniques.id AND place < 3)
      ELSE until > ?1 END
"""
_IN_THE_WAY = f"SELECT id FROM uniques WHERE name = ?2 AND {_COUNTS}"
_OLDEST = f"SELECT n, {_COUNTS} FROM uniques ORDER BY n LIMIT {_FORGOTTEN}"
_TO_THE_END = "UPDATE uniques SET n = (SELECT max(n) + 1 FROM uniques) WHERE n = ?"
_TAKE = """
    INSERT INTO uniques (name, id, until) VALUES (?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET id = excluded.id, until = excluded.until
"""


def in_the_way(step: Step, name: str, now: int) -> str | None:
    """The id of the job that has this name, if it still counts."""
    found = step.db.execute(_IN_THE_WAY, (now, name)).get
    return None if found is None else str(found)


def take(step: Step, job: Job, now: int) -> None:
    """Gives its name to a job that was just put, and forgets some that stand in nobody's way."""
    for n, counts in list(step.db.execute(_OLDEST, (now,))):
        step.db.execute(_TO_THE_END if counts else "DELETE FROM uniques WHERE n = ?", (n,))
    step.db.execute(_TAKE, (job.unique, job.id, now + span(job.window) if job.window else None))
