"""The arguments of an enqueue: runs of plain jobs, which a script only has to push, and single jobs that need checks.

A plain job has an id made for its enqueue, no unique name and no start time: most jobs are plain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import uuid4

import msgspec

from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.jobs.job_json import encode, rfc3339
from wrasse.backends.redis.jobs.states import default_queue
from wrasse.backends.redis.keys import QueueKeys, RedisKeys
from wrasse.backends.redis.options import RedisOptions
from wrasse.clock import to_micros
from wrasse.errors import UsageError
from wrasse.ports.jobs import GROUP_DEAD_HEADER, GROUP_DONE_HEADER, GROUP_HEADER, Enqueued, Job, JobGroup
from wrasse.ports.rules.job_transitions import setters

_NO_DELAY = timedelta(0)
_MILLISECOND = timedelta(milliseconds=1)
_new = object.__new__
_put_id, _put_new = setters(Enqueued, "id", "new")
_answers = msgspec.msgpack.Decoder(list[int | str]).decode


class CallKeys:
    """KEYS of one call: the fixed ones of its kind of script, then those of its workers and queues."""

    __slots__ = ("_first", "_keys", "keys")

    def __init__(self, keys: RedisKeys, fixed: Sequence[str]) -> None:
        self._keys = keys
        self._first: dict[tuple[str, str], int] = {}
        self.keys = [*fixed]

    def queue(self, name: str) -> int:
        """The position in KEYS of this queue's three keys."""
        found = self._first.get(("q", name))
        return self._added(("q", name), self._of(self._keys.queue(name))) if found is None else found

    def worker(self, id: str) -> int:
        """The position in KEYS of this worker's two keys."""
        found = self._first.get(("w", id))
        if found is not None:
            return found
        return self._added(("w", id), (self._keys.processing(id), self._keys.heartbeat(id)))

    def _added(self, what: tuple[str, str], names: Sequence[str]) -> int:
        first = self._first[what] = len(self.keys) + 1
        self.keys += names
        return first

    @staticmethod
    def _of(queue: QueueKeys) -> tuple[str, str, str]:
        return queue.list, queue.delayed, queue.wake


class EnqueueArguments:
    """Writes the jobs of one call as arguments."""

    __slots__ = ("_call_keys", "_created", "_options")

    def __init__(self, call_keys: CallKeys, options: RedisOptions, now: datetime) -> None:
        self._call_keys, self._options = call_keys, options
        self._created = rfc3339(now)

    def runs(self, jobs: Sequence[Job]) -> list[Word]:
        """The runs of these jobs, after their number."""
        args: list[Word] = []
        runs, under_way, begun = 0, ("", ""), 0
        for job in jobs:
            raw, kind = self._bytes(job), "" if job.unique or job.delay or job.not_before else _known(job) or "plain"
            if not kind:
                args += (0, *self._single(job, raw))
                runs, under_way = runs + 1, ("", "")
                continue
            step = 1 if kind == "plain" else -1
            if under_way == (kind, job.queue):
                args[begun] = int(args[begun]) + step
            else:
                begun, runs, under_way = len(args), runs + 1, (kind, job.queue)
                args += (step, self._call_keys.queue(job.queue), job.queue)
                args += () if kind == "plain" else (kind,)
            args += (raw,) if kind == "plain" else (job.id, raw)
        return [runs, *args]

    def groups(self, groups: Sequence[JobGroup]) -> list[Word]:
        """The groups to open, after their number."""
        args: list[Word] = [len(groups)]
        for group in groups:
            done, dead = uuid4().hex, uuid4().hex  # placeholders of the numbers
            told = {GROUP_HEADER: group.id, GROUP_DONE_HEADER: done, GROUP_DEAD_HEADER: dead}
            job = group.callback
            filled = Job(
                job.id, job.kind, job.queue, job.priority, job.payload, {**job.headers, **told}, job.not_before,
                job.delay, job.timeout, job.lasting, job.unique, job.window, job.keep, job.group, job.minted,
            )  # fmt: skip
            head, _, rest = self._bytes(filled).partition(done.encode())
            middle, _, tail = rest.partition(dead.encode())
            args += (group.id, group.size, middle, tail)
            args += self._single(filled, head)
        return args

    def _single(self, job: Job, raw: bytes) -> tuple[Word, ...]:
        due = 0 if job.not_before is None else -(-to_micros(job.not_before) // 1_000)
        first = self._call_keys.queue(job.queue)
        return first, job.queue, job.id, raw, due, in_ms(job.delay), _known(job), job.unique, in_ms(job.window)

    def _bytes(self, job: Job) -> bytes:
        try:
            return encode(job, self._created, default_queue(self._options, job.priority))
        except UnicodeEncodeError:
            raise _no_text(job) from None


def pushed(jobs: Sequence[Job], keys: RedisKeys, options: RedisOptions, now: datetime) -> tuple[list[str], list[Word]]:
    """KEYS and ARGV (except for the request) of the script that pushes plain jobs."""
    created, queues = rfc3339(now), options.queues
    if len(jobs) == 1:  # most enqueues are of one job: nothing needs sorting
        (job,) = jobs
        found = keys.queue(job.queue)
        names = [*keys.requests, keys.queues, found.list, found.wake]
        return names, [1, job.queue, 1, _text(job, created, queues)]
    runs: dict[str, list[Word]] = {}  # all of one queue together: they keep their order in it
    for job in jobs:
        run = runs.get(job.queue)
        if run is None:
            run = runs[job.queue] = []
        run.append(_text(job, created, queues))
    names = [*keys.requests, keys.queues]
    args: list[Word] = [len(runs)]
    for queue, run in runs.items():
        found = keys.queue(queue)
        names += (found.list, found.wake)
        args += (queue, len(run), *run)
    return names, args


def _text(job: Job, created: str, queues: Mapping[str, str]) -> bytes:
    try:
        return encode(job, created, queues.get(job.priority, job.priority))
    except UnicodeEncodeError:
        raise _no_text(job) from None


def _no_text(job: Job) -> UsageError:
    return UsageError(f"the headers of job {job.id!r} are no text", do="use characters that UTF-8 has")


def answers(answer: bytes, jobs: Sequence[Job]) -> tuple[Enqueued, ...]:
    """The script's answer for each job."""
    if answer == b"1":
        return tuple([_all_new(job.id) for job in jobs])
    return tuple(
        Enqueued(job.id, True) if each == 1 else Enqueued(str(each), False)
        for job, each in zip(jobs, _answers(answer), strict=True)
    )


def _all_new(id: str) -> Enqueued:
    put = _new(Enqueued)
    _put_id(put, id)
    _put_new(put, True)
    return put


def in_ms(time: timedelta) -> int:
    """Whole milliseconds, rounded up: never earlier than requested."""
    return -(-time // _MILLISECOND) if time > _NO_DELAY else 0


def _known(job: Job) -> str:
    """How long its id is remembered: for its lasting time, while the job exists, or not at all."""
    return "1" if job.lasting else "" if job.minted else "0"


def is_plain_enqueue(job: Job) -> bool:
    """Whether this job needs no checks."""
    return job.minted and not job.unique and not job.delay and job.not_before is None and not job.lasting
