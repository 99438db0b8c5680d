"""What a handler gets: one attempt of one job, read-only, with the proof of holding it.

Nothing a handler does to this object changes what the worker settles: the worker keeps the hold for itself. `token` is
a fencing token: it only grows, so whatever the handler writes to may refuse a smaller one than it has seen. Whether
the claim is still current only the backend knows; `still_mine` asks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import msgspec

from wrasse.bounded import encodable
from wrasse.errors import BadPayload, UsageError
from wrasse.ports.jobs import Claim, ClaimedJob, Job, Progress, check_job

T = TypeVar("T")
_ASK_MAX = timedelta(seconds=30)
NOTE_CHARS_MAX = 200
_UNREAD = object()


class JobWorker(Protocol):
    """The worker, as far as a running job needs it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that `mine` runs in."""
        ...

    async def mine(self, claim: Claim) -> bool:
        """Asks the backend. StoreUnavailable when it does not answer."""
        ...

    def note_group(self, claim: Claim, group: int) -> None:
        """Notes which process group does the work of a claim."""
        ...

    def note_progress(self, claim: Claim, progress: Progress) -> None:
        """Notes how far the work of a claim is. Called in the loop."""
        ...


class RunningJob:
    """A job while its handler runs."""

    __slots__ = ("_asks", "_claimed", "_data", "_follow_ups", "_gone")

    def __init__(self, claimed: ClaimedJob, asks: JobWorker) -> None:
        self._claimed = claimed
        self._asks = asks
        self._data: object = _UNREAD
        self._follow_ups: tuple[Job, ...] = ()
        self._gone = False

    @property
    def id(self) -> str:
        """The job's id."""
        return self._claimed.job.id

    @property
    def kind(self) -> str:
        """Which handler it asked for."""
        return self._claimed.job.kind

    @property
    def queue(self) -> str:
        """The queue it was taken from."""
        return self._claimed.job.queue

    @property
    def priority(self) -> str:
        """As its producer gave it."""
        return self._claimed.job.priority

    @property
    def headers(self) -> Mapping[str, str]:
        """As its producer gave them."""
        return self._claimed.job.headers

    @property
    def payload(self) -> bytes:
        """The bytes, as they were enqueued."""
        return self._claimed.job.payload

    @property
    def attempt(self) -> int:
        """How often the job was claimed, this time included."""
        return self._claimed.attempt

    @property
    def token(self) -> int:
        """The fencing token of this attempt; a later attempt has a greater one."""
        return self._claimed.claim.token

    @property
    def gone(self) -> bool:
        """Has the worker noticed that this attempt is over: timed out, taken away, or stopped? For threads, which
        cannot be cancelled: look at it between steps. False proves nothing; `still_mine` asks the backend."""
        return self._gone

    @property
    def data(self) -> Any:  # the shape of a payload is the user's; decode() checks it against a type
        """The payload read as JSON, or None for an empty one. Undecodable bytes dead-letter the job with its bytes
        kept."""
        if self._data is _UNREAD:
            self._data = self.decode(object) if self.payload else None
        return self._data

    def decode(self, kind: type[T]) -> T:
        """The payload read as JSON of this type: a dataclass, a TypedDict, a msgspec Struct, or a plain type."""
        try:
            return msgspec.json.decode(self.payload, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # Validation messages name places and types, decode errors a byte offset; neither quotes the payload.
            raise BadPayload(
                f"the payload of job {self.id!r} is not what its handler takes: {error}",
                do="look at it with `wrasse jobs show --payload`; enqueue the job again with the right bytes",
            ) from None

    def follow_up(self, job: Job) -> None:
        """Puts this job in the same atomic step that finishes the running one; never if that is refused."""
        check_job(job)
        self._follow_ups = (*self._follow_ups, job)

    @property
    def follow_ups(self) -> tuple[Job, ...]:
        """What will be enqueued when this job is finished."""
        return self._follow_ups

    async def still_mine(self) -> bool:
        """Asks the backend whether the claim is current. Ask right before a side effect that must not happen twice."""
        if self._gone:
            return False
        return await self._asks.mine(self._claimed.claim)

    def still_mine_blocking(self) -> bool:
        """`still_mine` for handlers that are plain functions and run in a thread."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asked = asyncio.run_coroutine_threadsafe(self.still_mine(), self._asks.loop)
            return asked.result(_ASK_MAX.total_seconds())
        raise UsageError("still_mine_blocking() was called in the event loop", do="write `await job.still_mine()`")

    async def progress(self, fraction: float, note: str = "") -> None:
        """Says how far the handler is: a share from 0 to 1, and a few words. Shown with the job; written at most once a
        second, and the last one before the job ends."""
        if not self._gone:
            self._asks.note_progress(self._claimed.claim, _checked(fraction, note))

    def progress_blocking(self, fraction: float, note: str = "") -> None:
        """`progress` for handlers that are plain functions and run in a thread."""
        told = _checked(fraction, note)
        if not self._gone:
            self._asks.loop.call_soon_threadsafe(self._asks.note_progress, self._claimed.claim, told)

    def runs_in(self, group: int) -> None:
        """Names the process group that does the work, so that it dies with a worker that is killed; 0 for none."""
        self._asks.note_group(self._claimed.claim, group)

    def end(self) -> None:
        """Said by the worker when the attempt is over before its handler is."""
        self._gone = True


def _checked(fraction: float, note: str) -> Progress:
    if not 0 <= fraction <= 1:
        raise UsageError(f"a progress of {fraction}", do="give a share from 0 to 1")
    return Progress(float(fraction), encodable(note[:NOTE_CHARS_MAX]))
