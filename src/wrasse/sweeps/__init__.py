"""The catalogue: every sweep, by name. Command line, daemon, configuration, docs and status page read it.

One file per sweep; each docstring begins with its evidence, its grace, its precondition, and the effect of an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from wrasse.engine.run import AnySweep, RunBudget
from wrasse.sweeps.aged_entries import AgedEntries
from wrasse.sweeps.aged_records import AgedRecords
from wrasse.sweeps.dead_consumers import DeadConsumers
from wrasse.sweeps.expired_leases import ExpiredLeases
from wrasse.sweeps.finished_jobs import FinishedJobs
from wrasse.sweeps.open_transactions import OpenTransactions
from wrasse.sweeps.orphan_objects import OrphanObjects
from wrasse.sweeps.spent_decisions import SpentDecisions
from wrasse.sweeps.stuck_jobs import StuckJobs


@dataclass(frozen=True, slots=True)
class Catalogued:
    """A sweep as it is documented: what it takes away, and what it leaves alone."""

    name: str
    kind: type[AnySweep]
    takes_away: str
    unless: str
    interval: timedelta
    budget: RunBudget = field(default_factory=RunBudget)
    use: str = ""  # module:Class of a sweep that is not wrasse's own

    @property
    def page(self) -> str:
        """Where the docs describe it."""
        return f"docs/sweeps/{self.name}.md"


CATALOGUE: Mapping[str, Catalogued] = {
    entry.name: entry
    for entry in (
        Catalogued(
            StuckJobs.name,
            StuckJobs,
            takes_away="jobs of a worker without heartbeat: made ready again, or dead-lettered after too many rescues",
            unless="the worker sends a heartbeat or settles; the backend restarted; most workers stopped at once",
            interval=timedelta(seconds=10),
        ),
        Catalogued(
            FinishedJobs.name,
            FinishedJobs,
            takes_away="jobs that are done or dead for longer than they are kept",
            unless="the job was made ready again meanwhile",
            interval=timedelta(minutes=1),
            budget=RunBudget(actions_max=10_000),
        ),
        Catalogued(
            OrphanObjects.name,
            OrphanObjects,
            takes_away="objects that no reference has named for their whole grace: into quarantine, and then for good",
            unless="the root is not armed; anything refers to it; it was changed; the database or the plan looks wrong",
            interval=timedelta(hours=1),
            budget=RunBudget(actions_max=10_000, runtime_max=timedelta(minutes=10)),
        ),
        Catalogued(
            ExpiredLeases.name,
            ExpiredLeases,
            takes_away="expired leases, and an hour later the objects that their holders left",
            unless="the lease was renewed, released or taken over; keys are in use",
            interval=timedelta(minutes=5),
            budget=RunBudget(pause=timedelta(milliseconds=100)),
        ),
        Catalogued(
            OpenTransactions.name,
            OpenTransactions,
            takes_away="transactions that a crash left open: applied as decided, or rolled back when overdue",
            unless="it is pending and one of its leases has not expired; keys are in use",
            interval=timedelta(minutes=5),
            budget=RunBudget(pause=timedelta(milliseconds=100)),
        ),
        Catalogued(
            SpentDecisions.name,
            SpentDecisions,
            takes_away="decision records of transactions, a day after they were applied",
            unless="it has not expired; keys are in use",
            interval=timedelta(minutes=5),
            budget=RunBudget(pause=timedelta(milliseconds=100)),
        ),
        Catalogued(
            AgedEntries.name,
            AgedEntries,
            takes_away="entries of streams that are older than `retention` keeps them",
            unless="no rule matches the stream; an archiver or a worker group has not acked them",
            interval=timedelta(seconds=30),
        ),
        Catalogued(
            DeadConsumers.name,
            DeadConsumers,
            takes_away="dead consumers, after their pending entries are handed over; alerts about unread groups",
            unless="the consumer asks again; it is another program's and has pending entries",
            interval=timedelta(seconds=30),
            budget=RunBudget(actions_max=10_000),
        ),
        Catalogued(
            AgedRecords.name,
            AgedRecords,
            takes_away="keys unused for `leases.disk_retention`, with their state",
            unless="no retention is set; the key is leased; it was used meanwhile",
            interval=timedelta(hours=1),
        ),
    )
}
