"""Backends as they are opened: what every one has, and the ports that only some have.

Promise. A port that a backend lacks is None, and `capabilities` says so; settings that need it are refused before
anything runs. Whoever asks for jobs, streams or objects gets a JobStore, a StreamStore or an ObjectStore.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from wrasse.ports.capabilities import Capabilities

if TYPE_CHECKING:
    from wrasse.ports.groups import Groups
    from wrasse.ports.health_check import HealthSample
    from wrasse.ports.inconsistency import JobFsck
    from wrasse.ports.job_lists import JobLists
    from wrasse.ports.jobs import JobQueue
    from wrasse.ports.journal import Journal
    from wrasse.ports.limiter import Limiter
    from wrasse.ports.named_locks import PlainLocks
    from wrasse.ports.namespaces import Namespaces
    from wrasse.ports.objects import Objects
    from wrasse.ports.records import Collection, Records
    from wrasse.ports.rules.check_result import Finding
    from wrasse.ports.server_ages import ServerAges
    from wrasse.ports.sightings import Sightings
    from wrasse.ports.strays import Strays
    from wrasse.ports.streams import Streams
    from wrasse.ports.surveys import Surveys


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
    damages: JobFsck | None = None
    strays: Strays | None = None
    plain_locks: PlainLocks | None = None
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
        """Lets go of what is open."""

    async def check_streams(self) -> None:  # noqa: B027  # most have nothing to refuse
        """Refuses a server that is there but cannot keep streams, such as one that is too old."""

    async def honours(self) -> object:
        """What it was found to honour, as text. If that was not asked when it was opened, it is now, with writes."""
        return ""

    async def forget(self, collection: Collection) -> None:  # noqa: B027  # most keep nothing that is seen
        """Removes what is kept of the deleted records of a collection, if it has no others."""

    async def examine(self) -> Sequence[Finding]:
        """What the doctor is to tell about the settings of its server."""
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
