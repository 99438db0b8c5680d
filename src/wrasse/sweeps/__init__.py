"""The catalogue: every sweep there is, by name. Command line, daemon, configuration, docs and status page read it.

This folder is the table of contents of the product: one file per sweep, each opening with its evidence, its grace, its
precondition, and what happens if it is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from wrasse.engine.budget import RunBudget
from wrasse.engine.run import AnySweep
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
    """A sweep as a reader meets it: what it takes away and from whom it keeps its hands off."""

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
            takes_away="leases that ended by themselves, and an hour later what their holders left behind",
            unless="the lease was renewed, given back or taken over; keys are in use",
            interval=timedelta(minutes=5),
            budget=RunBudget(pause=timedelta(milliseconds=100)),
        ),
        Catalogued(
            OpenTransactions.name,
            OpenTransactions,
            takes_away="transactions that a crash left open: carried out as decided, or rolled back when overdue",
            unless="it is pending and one of its leases lasts; keys are in use",
            interval=timedelta(minutes=5),
            budget=RunBudget(pause=timedelta(milliseconds=100)),
        ),
        Catalogued(
            SpentDecisions.name,
            SpentDecisions,
            takes_away="what is left of transactions, a day after they were carried out",
            unless="its time is not over; keys are in use",
            interval=timedelta(minutes=5),
            budget=RunBudget(pause=timedelta(milliseconds=100)),
        ),
        Catalogued(
            AgedEntries.name,
            AgedEntries,
            takes_away="entries of streams that are older than `retention` keeps them",
            unless="no rule is about the stream; an archiver or a worker group has not acked them",
            interval=timedelta(seconds=30),
        ),
        Catalogued(
            DeadConsumers.name,
            DeadConsumers,
            takes_away="consumers that fell silent, once what they held is handed over; tells of groups nobody reads",
            unless="the consumer asks again; it is another program's and holds something",
            interval=timedelta(seconds=30),
            budget=RunBudget(actions_max=10_000),
        ),
        Catalogued(
            AgedRecords.name,
            AgedRecords,
            takes_away="keys that nobody has touched for `leases.disk_retention`, with their state",
            unless="no retention is set; the key is held; it was touched meanwhile",
            interval=timedelta(hours=1),
        ),
    )
}
