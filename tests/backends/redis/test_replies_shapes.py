"""A server that speaks RESP and answers with values that do not fit the command: an error of ours, or a value."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import cycle, repeat

import pytest

from servers.hostile import complaints, hostile
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.options import RedisOptions
from wrasse.errors import StoreBroken, WrasseError
from wrasse.ports.groups import Ack, DeadLetter, Delivery, Nak, StartAt
from wrasse.ports.jobs import (
    Budget,
    Cancel,
    Claim,
    Complete,
    DeadLetterJob,
    Delete,
    Job,
    JobFilter,
    JobGroup,
    JobState,
    Progress,
    Rate,
    Reason,
    Requeue,
    RequeueDead,
    WorkerInfo,
)
from wrasse.ports.records import Collection
from wrasse.ports.streams import Draft, Entry, EntryId

DEADLINE_S = 8  # of one call, on a machine that is busy
SECOND = timedelta(seconds=1)
NOW = datetime(2026, 1, 2, tzinfo=UTC)
HOLD = Claim("j1", 7, "0a0b0c0d")
ID = EntryId(5, 1)
LEAVES: list[object] = [None, 0, 1, -1, 2**63 - 1, b"", b"0", b"1", b"a", b"d1", b"\xff", b"1-1", b"none", b"full"]
SHAPES: list[object] = [
    *LEAVES, [], [[]], [[[]]], [[b"0", b"0"]], [b"0", []], [b"0", [b"a"]], [b"0", [None]], [b"0", 1], [1, b"a", [1]],
    *([leaf] * count for leaf in LEAVES for count in (1, 2, 3, 4, 5, 9)),
    *([[leaf] * 2] * count for leaf in (None, 1, b"a") for count in (1, 2, 3)),
]  # fmt: skip
Call = Callable[[Redis], Awaitable[object]]
Peer = Callable[[Iterator[object]], Awaitable[Redis]]
_GOOD_DELIVERY = [1, -1, 1, [1, b"1-1", 1, 1, b"body"]]


def _delivery() -> Delivery:
    return Delivery(Entry(ID, "a.b", b"x"), "g", "c", 1, NOW)


PLAIN, FLAT = Collection("things", "due", "buckets", SECOND), Collection("things", "due", "buckets", SECOND, flat=True)
BURY, REQUEUE = DeadLetterJob(HOLD, Reason.FAILED), Requeue(HOLD, Budget.FAILURES, Reason.FAILED)


async def _native(redis: Redis) -> object:
    """The second delivery of one stream goes another way than the first."""
    await redis.groups.deliver(["a.b"], "g", "c", 5, ack_timeout=SECOND)
    return await redis.groups.deliver(["a.b"], "g", "c", 5, ack_timeout=SECOND, wait=SECOND / 50)


def _take(redis: Redis, wait: timedelta = timedelta(0)) -> Awaitable[object]:
    rates = [Rate("low", 5, SECOND)]
    return redis.jobs.claim(
        ["low", "high"], 3, worker="w", heartbeat_timeout=SECOND, request="r", wait=wait, rates=rates
    )


CALLS: dict[str, Call] = {
    "jobs.put": lambda redis: redis.jobs.enqueue([Job("j1"), Job("j2")], request="r"),
    "jobs.put unique": lambda redis: redis.jobs.enqueue([Job("j1", unique="u"), Job("j2", delay=SECOND)], request="r"),
    "jobs.put group": lambda redis: redis.jobs.enqueue((), request="r", groups=[JobGroup("g", 1, Job("c"))]),
    "jobs.take": _take,
    "jobs.take waiting": lambda redis: _take(redis, SECOND / 50),
    "jobs.beat": lambda redis: redis.jobs.heartbeat(
        WorkerInfo("w"), [HOLD], heartbeat_timeout=SECOND, progress={"j1": Progress(0.5)}
    ),
    "jobs.settle": lambda redis: redis.jobs.settle([Complete(HOLD), BURY, REQUEUE], request="r"),
    "jobs.move held": lambda redis: redis.jobs.move([REQUEUE, BURY]),
    "jobs.move dead": lambda redis: redis.jobs.move([RequeueDead(HOLD)]),
    "jobs.move cancel": lambda redis: redis.jobs.move([Cancel("j1")]),
    "jobs.get": lambda redis: redis.jobs.get("j1"),
    **{
        f"jobs.page {state} {newest}": lambda redis, place=state, newest=newest: redis.jobs.page(  # type: ignore[misc]
            place, JobFilter(), None, 5, newest=newest
        )
        for state in JobState
        for newest in (False, True)
    },
    "jobs.overdue": lambda redis: redis.jobs.overdue(None, 5),
    "jobs.counts": lambda redis: redis.jobs.counts(),
    **{
        f"jobs.delete {state}": lambda redis, place=state: redis.jobs.delete([Delete(HOLD, place)])  # type: ignore[misc]
        for state in (JobState.READY, JobState.DONE, JobState.DEAD)
    },
    "streams.append": lambda redis: redis.streams.append([Draft("a.b", b"x")]),
    "streams.append keyed": lambda redis: redis.streams.append([Draft("a.b", b"x", "k"), Draft("a.c", b"x")]),
    "streams.read": lambda redis: redis.streams.read("a.b", ID, 5),
    "streams.stretch": lambda redis: redis.streams.chunk("a.b", ID, 5),  # type: ignore[attr-defined]
    "streams.info": lambda redis: redis.streams.info("a.b"),
    "streams.subjects": lambda redis: redis.streams.subjects("a.b", None, 5),
    "streams.subjects wild": lambda redis: redis.streams.subjects("a.*", None, 5),
    "streams.trim": lambda redis: redis.streams.trim("a.b", age=SECOND, below=ID, protect=["g"], limit=5),
    "groups.join": lambda redis: redis.groups.join("a.b", "g", StartAt(first=True)),
    "groups.deliver": lambda redis: redis.groups.deliver(["a.b"], "g", "c", 5, ack_timeout=SECOND, wait=SECOND / 50),
    "groups.deliver natively": _native,
    "groups.extend": lambda redis: redis.groups.extend("c", [_delivery()], ack_timeout=SECOND),
    "groups.answer": lambda redis: redis.groups.answer(
        [Ack("a.b", "g", ID), Nak("a.b", "g", ID), DeadLetter("a.b", "g", ID, Draft("dead", b"x"))]
    ),
    "groups.mark": lambda redis: redis.groups.mark("a.b", "g", ID),
    "groups.consumers": lambda redis: redis.groups.consumers("a.b", "g"),
    "groups.retire": lambda redis: redis.groups.retire("a.b", "g", "c"),
    "pulse": lambda redis: redis.health_sample(),
    "examine": lambda redis: redis.examine(),
    "check_streams": lambda redis: redis.check_streams(),
    "fsck.check": lambda redis: redis.fsck.check(repair=False, heartbeat_timeout=SECOND),
    "strays.scan": lambda redis: redis.strays.scan(None, 5, heartbeat_timeout=SECOND, dry=False),
    "surveys.survey": lambda redis: redis.surveys.survey("a.*", None, 5),
    "limiter.allow": lambda redis: redis.limiter.allow("k", 1, rate=5, burst=5),
    "limiter.give_back": lambda redis: redis.limiter.give_back("k", 1, rate=5),
}
for _name, _of, _value in (("records", PLAIN, b"x"), ("flat", FLAT, b'{"a":"b"}')):
    CALLS |= {
        f"{_name}.create": lambda redis, of=_of, value=_value: redis.records(of).create("k", value, due_at=NOW),  # type: ignore[misc]
        f"{_name}.create emit": lambda redis, of=_of, value=_value: redis.records(of).create(  # type: ignore[misc]
            "k", value, emit=[Draft("a.b", b"x")]
        ),
        f"{_name}.get": lambda redis, of=_of: redis.records(of).get("k"),  # type: ignore[misc]
        f"{_name}.put": lambda redis, of=_of, value=_value: redis.records(of).put("k", value, at="1-a"),  # type: ignore[misc]
        f"{_name}.delete": lambda redis, of=_of: redis.records(of).delete("k", at="1-a"),  # type: ignore[misc]
        f"{_name}.page": lambda redis, of=_of: redis.records(of).page("", None, 5),  # type: ignore[misc]
        f"{_name}.due": lambda redis, of=_of: redis.records(of).due(None, None, 5),  # type: ignore[misc]
    }


def resp(value: object) -> bytes:
    match value:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % value
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(value), value)
        case list():
            return b"*%d\r\n" % len(value) + b"".join(map(resp, value))
    raise AssertionError(value)


async def _words(reader: asyncio.StreamReader) -> list[bytes]:
    count = int((await reader.readuntil(b"\r\n"))[1:])
    sized = [await reader.readexactly(int((await reader.readuntil(b"\r\n"))[1:]) + 2) for _ in range(count)]
    return [each[:-2] for each in sized]


class Liar:
    """Answers every command with the next of `answers`; logs in as a server does, and queues what follows MULTI."""

    def __init__(self) -> None:
        self.answers: Iterator[object] = repeat(None)

    async def play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        login, queued = 2, -1
        while True:
            command = (await _words(reader))[0].upper()
            if login:
                login -= 1
                writer.write(b"+PONG\r\n" if command == b"PING" else b"+OK\r\n")
            elif command == b"MULTI":
                queued = 0
                writer.write(b"+OK\r\n")
            elif command == b"EXEC":
                writer.write(resp([next(self.answers) for _ in range(queued)]))
                queued = -1
            elif queued >= 0:
                queued += 1
                writer.write(b"+QUEUED\r\n")
            else:
                writer.write(resp(next(self.answers)))


@pytest.fixture
async def met() -> AsyncIterator[tuple[Liar, Redis]]:
    liar = Liar()
    async with hostile(liar.play) as port:
        redis = await Redis.open(
            RedisOptions((("127.0.0.1", port),), dial_timeout=SECOND, read_timeout=SECOND, max_retries=0)
        )
        try:
            yield liar, redis
        finally:
            await redis.close()


async def outcome(redis: Redis, call: Call) -> object:
    """What the call gives: a value, or the error."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await call(redis)
    except Exception as error:
        return error


def _wrong(found: object) -> bool:
    return isinstance(found, Exception) and not isinstance(found, WrasseError)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_reply_of_another_shape_is_an_error_of_ours(met: tuple[Liar, Redis], call: Call) -> None:
    liar, redis = met
    escaped = complaints(asyncio.get_running_loop())
    first = [_GOOD_DELIVERY] if call is _native else []
    found = []
    for shape in SHAPES:
        liar.answers = cycle([shape]) if not first else iter([*first, *[shape] * 1_000])
        found.append((shape, await outcome(redis, call)))
    for seed in range(60):
        chance = random.Random(seed)
        liar.answers = iter([*first, *(chance.choice(SHAPES) for _ in range(10_000))])
        found.append((seed, await outcome(redis, call)))
    wrong = [(shape, repr(each)) for shape, each in found if _wrong(each)]
    assert wrong == []
    assert escaped == []


async def test_a_delivery_of_fewer_than_no_words_is_refused(met: tuple[Liar, Redis]) -> None:
    liar, redis = met
    # Read as it is said, minus four words would lead back to the same delivery for ever.
    liar.answers = repeat([1, -1, 1, [1, b"1-1", 1, -4]])
    with pytest.raises(StoreBroken):
        await CALLS["groups.deliver"](redis)


async def test_the_error_names_the_server_and_keeps_its_cause(met: tuple[Liar, Redis]) -> None:
    liar, redis = met
    liar.answers = repeat(7)
    unreadable = r"127\.0\.0\.1:\d+ answered RedisLimiter\.allow with an unreadable reply"
    with pytest.raises(StoreBroken, match=unreadable) as told:
        await redis.limiter.allow("k", 1, rate=5, burst=5)
    assert isinstance(told.value.__cause__, TypeError)
    assert "redis.addr" in told.value.do


async def test_an_argument_of_the_wrong_type_is_not_laid_on_the_server(met: tuple[Liar, Redis]) -> None:
    _, redis = met
    with pytest.raises(TypeError):
        await redis.limiter.allow("k", "1", rate=5, burst=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await redis.streams.read("a.b", ID, "5")  # type: ignore[arg-type]
