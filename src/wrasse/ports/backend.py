"""Backends as they are opened: the ports that each has, what it can do, and what the doctor finds.

Promise. Capabilities is a constant of each backend: it declares what the backend can do beyond what every backend of
its ports must do; a field is False unless it is declared. A port that a backend lacks is None, and settings that need
it are refused before anything runs. A caller that needs jobs, streams or objects gets a JobStore, a StreamStore or an
ObjectStore. A conformance test that needs a capability names its field, and runs on the backends that declare it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wrasse.ports.groups import Groups
    from wrasse.ports.guard import HealthSample, NamedLocks
    from wrasse.ports.inconsistency import JobFsck, Strays
    from wrasse.ports.job_lists import JobLists
    from wrasse.ports.jobs import JobQueue
    from wrasse.ports.journal import Journal
    from wrasse.ports.limiter import Limiter
    from wrasse.ports.objects import Objects
    from wrasse.ports.records import Collection, Namespaces, Records
    from wrasse.ports.sightings import Sightings
    from wrasse.ports.streams import ServerAges, Streams, Surveys

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one backend can do."""

    jobs: bool = False
    """Keeps jobs."""

    job_extras: bool = False
    """Jobs may have unique names and groups, and queues rates. Without it a job or setting with one is refused."""

    streams: bool = False
    """Keeps streams, and groups that read them."""

    objects: bool = False
    """Keeps objects: large parameters and results, the state of leases, archives."""

    journal: bool = False
    """Keeps the journal of sweeps in a table of its own. Without it journal lines are records."""

    limiter: bool = False
    """Counts a shared rate of enqueues in one step. Without it the count is a record that writers compare and set."""

    sightings: bool = False
    """Keeps the sightings of orphans. Without it a root needs `sightings:` of another backend."""

    surveys: bool = False
    """Reads the state of many streams in one request. Without it each stream is asked for by itself."""

    fsck: bool = False
    """Keeps a job in several places, which `wrasse jobs fsck` compares. Without it there is nothing to compare."""

    strays: bool = False
    """Finds jobs that other programs claimed and left without a heartbeat."""

    named_locks: bool = False
    """Has locks that other programs take by SET NX, so that sweeps keep out of their way."""

    lists: bool = False
    """Keeps jobs in lists that other programs read, which `--role=admin` shows."""

    ages: bool = False
    """Its server removes old entries of a stream by itself, as `retention` says."""

    billed: bool = False
    """Each request is billed: workers that wait ask once a second instead of five times."""

    status_index: bool = False
    """Counts and lists stream tasks by state from an index. Without it each count and list reads the tasks."""

    shared: bool = False
    """Keeps stream tasks where other programs write them too, and searches for those that its index lacks."""

    copies: bool = False
    """Copies an object within the store. Without it the bytes of a file that is quarantined pass through wrasse."""

    multipart: bool = False
    """Has uploads in parts, of which `orphan_objects` aborts those that were never completed."""

    versions: bool = False
    """May keep what is deleted, which then is the quarantine. Without it orphans are copied, then deleted."""

    ack_outcome: bool = False
    """`Groups.answer` tells for each answer whether the entry was still pending. Without it `done` says
    that the server took the answer; `conflict` is told only of what this process knows to be settled or never had."""

    ack_timeout_per_call: bool = False
    """`deliver` and `extend` set the deadline of each delivery. Without it a group has one ack time-out, given when it
    is made (`join`), and another one is refused."""

    knows_holders: bool = False
    """The group knows the consumer of each pending entry: `consumers` lists them, `retire` hands over those of a dead
    one, `extend` tells whether a delivery is still the caller's. Without it only the ack time-out frees them."""

    marks_any_group: bool = False
    """`mark` moves every group. Without it only one that was joined with `cursor=True`, which then delivers nothing."""

    uncounted_return: bool = False
    """A delivery whose caller was cancelled returns with its count as before. Without it, it counts as one delivery."""

    begins_later: bool = False
    """A group may begin at a moment that is still to come. Without it that is refused."""


GROUPS = frozenset(
    {"ack_outcome", "ack_timeout_per_call", "knows_holders", "marks_any_group", "uncounted_return", "begins_later"}
)
"""The fields about groups of streams."""

OBJECTS = frozenset({"copies", "multipart", "versions"})
"""The fields about objects: parts of `Objects`."""

RECORDS = frozenset({"status_index", "shared"})
"""The fields about records: parts of `Records` where the collection is flat."""


def full_groups(capabilities: Capabilities) -> Capabilities:
    """The same with everything that groups can do."""
    return replace(capabilities, **dict.fromkeys(GROUPS, True))


class Backend(ABC):
    """One open backend."""

    capabilities: Capabilities
    namespaces: Namespaces
    margin: timedelta = timedelta(0)  # how far the time it tells may be off
    there: bool = True  # False: nothing was stored yet, and it was opened to read only

    jobs: JobQueue | None = None
    streams: Streams | None = None
    groups: Groups | None = None
    objects: Objects | None = None
    journal: Journal | None = None
    limiter: Limiter | None = None
    sightings: Sightings | None = None
    surveys: Surveys | None = None
    fsck: JobFsck | None = None
    strays: Strays | None = None
    named_locks: NamedLocks | None = None
    lists: JobLists | None = None
    ages: ServerAges | None = None

    @property
    def requests(self) -> int | None:
        """How many requests were sent so far, where each one is billed."""
        return None

    @abstractmethod
    def records(self, collection: Collection) -> Records:
        """The records of one collection."""

    @abstractmethod
    async def health_sample(self) -> HealthSample:
        """Does it answer, is it the same one, what is its time?"""

    @abstractmethod
    async def close(self) -> None:
        """Closes what is open."""

    async def check_streams(self) -> None:  # noqa: B027  # most have nothing to refuse
        """Refuses a server that is there but cannot keep streams, such as one that is too old."""

    async def honours(self) -> object:
        """What it was found to honour, as text. If that was not probed at opening, it is now, with writes."""
        return ""

    async def forget(self, collection: Collection) -> None:  # noqa: B027  # most keep nothing of them
        """Removes what is kept of the deleted records of a collection, if it has no others."""

    async def examine(self) -> Sequence[Finding]:
        """What the doctor reports about the settings of its server."""
        return ()


class JobStore(Backend):
    """A backend with jobs."""

    jobs: JobQueue


class StreamStore(Backend):
    """A backend with streams, and groups that read them."""

    streams: Streams
    groups: Groups


class ObjectStore(Backend):
    """A backend with objects."""

    objects: Objects


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: its state, what was found, and what to do about it."""

    check: str
    state: str
    what: str
    do: str = ""
