"""Jobs on Redis as other programs see them: a job's bytes, the lists it moves through, and safe changes by others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given, strategies as st

from backends.redis.peer import GARBAGE
from conformance.queue_client import EVERYTHING, HEARTBEAT_TIMEOUT, QueueClient, fresh
from servers.proxy import proxy
from servers.valkey import Valkey, valkey
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.jobs import queue
from wrasse.backends.redis.jobs.job_json import (
    JobChange,
    changed,
    decode,
    encode,
    flaw,
    job_of,
    payload_of,
    rfc3339,
)
from wrasse.backends.redis.options import RedisOptions
from wrasse.bounded import EARLIEST
from wrasse.clock import EPOCH, ManualClock
from wrasse.errors import UsageError
from wrasse.ports.jobs import Complete, DeadLetterJob, Job, JobGroup, JobInfo, JobState, Reason
from wrasse.ports.outcome import Outcome

HIGH, LOW = "jobqueue:high_priority", "jobqueue:low_priority"
GO = (
    b'{"id":"0123456789abcdef0123456789abcdef","filepath":"/data/a\\u0026b \\u003cc\\u003e \xc3\xa9\\u2028\\"q\\".txt",'
    b'"filesize":1023,"priority":"high","retries":0,"creation_time":"2025-09-16T03:04:05.12Z",'
    b'"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","span_id":"00f067aa0ba902b7"}'
)


def _file(filepath: str, filesize: int) -> bytes:
    return msgspec.json.encode({"filepath": filepath, "filesize": filesize})


PATH = '/data/a&b <c> é\u2028"q".txt'
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MADE = datetime(2025, 9, 16, 3, 4, 5, 120_000, tzinfo=UTC)
FILE = Job(
    "0123456789abcdef0123456789abcdef",
    queue=HIGH,
    priority="high",
    payload=_file(PATH, 1023),
    headers={"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7"},
)


class Peer:
    """A Redis with our jobs in it, and any program's way to its keys."""

    def __init__(self, redis: Redis) -> None:
        self.redis, self.root = redis, redis.client.options.root
        self.jobs_client = QueueClient(redis.jobs)

    async def do(self, *command: str | bytes | int) -> object:
        return await self.redis.client.ask(*command)

    async def list(self, name: str) -> list[bytes]:
        found = await self.do("LRANGE", f"{self.root}:{name}", 0, -1)
        assert isinstance(found, list)
        return found

    async def push(self, *raw: bytes, queue: str = "queue:low") -> None:
        for each in raw:
            await self.do("LPUSH", f"{self.root}:{queue}", each)

    async def known(self, queue: str) -> None:
        """Some producer of ours has used this queue."""
        await self.do("SADD", f"{self.root}:queues", queue)

    async def everywhere(self) -> list[bytes]:
        """The ids in all lists and delayed sets, once for each place."""
        names = ("queue:low", "worker:w1:processing", "completed", "dead_letter")
        found = [raw for name in names for raw in await self.list(name)]
        delayed = await self.do("ZRANGE", f"{self.root}:queue:low:delayed", 0, -1)
        assert isinstance(delayed, list)
        raws = [*found, *(raw.partition(b":")[2] for raw in delayed)]
        return [msgspec.json.decode(raw)["id"] for raw in raws]


async def opened(server: Valkey, done_max: int = 10_000) -> Peer:
    options = RedisOptions(nodes=(("127.0.0.1", server.port),), root=f"t{uuid4().hex}")
    return Peer(await Redis.open(options, done_max=done_max))


@pytest.fixture
async def peer(redis_server: Valkey) -> AsyncIterator[Peer]:
    peer = await opened(redis_server)
    yield peer
    await peer.redis.close()


# The bytes


def test_a_file_job_is_written_byte_for_byte_as_the_origin_writes_it() -> None:
    assert encode(FILE, rfc3339(MADE), HIGH) == GO


def test_what_the_origin_wrote_is_read() -> None:
    wire = decode(GO)
    assert wire is not None
    assert (job_of(wire, HIGH), wire.filepath, wire.creation_time) == (FILE, PATH, MADE)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.12Z", datetime(2026, 1, 2, 3, 4, 5, 120_000, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456Z", datetime(2026, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)),
    ],
)
def test_a_moment_is_read_and_written_as_the_origin_has_it(text: str, moment: datetime) -> None:
    wire = decode(b'{"id":"a","creation_time":"%b"}' % text.encode())
    assert wire is not None
    assert (wire.creation_time, rfc3339(moment)) == (moment, text)


def test_nanoseconds_are_read_and_survive_a_change() -> None:
    raw = b'{"id":"a","creation_time":"2026-01-02T03:04:05.123456789Z"}'
    wire = decode(raw)
    assert wire is not None
    assert abs(wire.creation_time - datetime(2026, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)) < timedelta(microseconds=2)
    assert b"05.123456789Z" in changed(raw, JobChange(retries=1))


@pytest.mark.parametrize("value", ["1.5", '"12"', "-1", "true", "null", "1e99", str(2**63)])
def test_a_file_size_that_the_origin_could_not_read_is_never_written_as_one(value: str) -> None:
    payload = b'{"filepath":"/a","filesize":%s}' % value.encode()
    written = msgspec.json.decode(raw := encode(Job("a", payload=payload), rfc3339(MADE), "low"))
    assert (written["filepath"], written["filesize"]) == ("", 0)
    wire = decode(raw)
    assert wire is not None
    assert payload_of(wire) == payload


@pytest.mark.parametrize("name", ["filesize", "retries"])
@pytest.mark.parametrize("value", [1.5, "x", -1, True, 2**63])
def test_a_number_that_is_no_count_is_named_with_its_field(name: str, value: object) -> None:
    raw = msgspec.json.encode(msgspec.json.decode(GO) | {name: value})
    assert decode(raw) is None
    assert name in flaw(raw)


def test_the_eight_fields_come_first_and_all_of_them() -> None:
    raw = encode(Job("a", "mail", headers={"x": "1"}, lasting=True, timeout=HEARTBEAT_TIMEOUT), rfc3339(MADE), "low")
    eight = ["id", "filepath", "filesize", "priority", "retries", "creation_time", "trace_id", "span_id"]
    assert list(msgspec.json.decode(raw))[:8] == eight


def test_a_job_names_its_queue_unless_that_follows_from_its_priority() -> None:
    usual, unusual = encode(Job("a"), rfc3339(MADE), "low"), encode(Job("a", queue="x"), rfc3339(MADE), "low")
    assert b"origin_queue" not in usual
    assert msgspec.json.decode(unusual)["origin_queue"] == "x"


jobs = st.builds(
    Job,
    id=st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=40),
    kind=st.text(max_size=20),
    queue=st.sampled_from(["low", "other"]),
    priority=st.sampled_from(["low", "high"]),
    payload=st.one_of(st.binary(max_size=100), st.builds(_file, st.text(max_size=20), st.integers(0, 2**53))),
    headers=st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3),
    not_before=st.none() | st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    delay=st.timedeltas(timedelta(0), timedelta(days=99)),
    timeout=st.none() | st.timedeltas(timedelta(0), timedelta(days=99)),
    lasting=st.booleans(),
    unique=st.text(max_size=10),
    window=st.timedeltas(timedelta(0), timedelta(days=99)),
    keep=st.timedeltas(timedelta(0), timedelta(days=99)),
    group=st.text(max_size=10),
)


@given(jobs)
def test_any_job_comes_back_from_its_bytes(job: Job) -> None:
    wire = decode(encode(job, rfc3339(MADE), "low"))
    assert wire is not None
    file = job.payload.startswith(b'{"filepath":"","filesize":0')  # names no file: it is not one
    assert job_of(wire, job.queue) == job or (file and payload_of(wire) == job.payload)


names = st.text(st.characters(codec="utf-8"), max_size=8).filter(
    lambda name: name.lower() not in JobChange.__struct_fields__
)


@given(st.dictionaries(names, st.recursive(st.none() | st.integers() | st.text(), st.lists), max_size=4))
def test_fields_nobody_knows_survive_every_change(others: dict[str, object]) -> None:
    others = {name: value for name, value in others.items() if name not in msgspec.json.decode(GO)}
    raw = msgspec.json.encode(msgspec.json.decode(GO) | others)
    after = msgspec.json.decode(changed(changed(raw, JobChange(retries=1)), JobChange(error="<&>", reason="failed")))
    assert {name: after[name] for name in others} == others
    assert after["retries"] == 1


# What is no job


MORE_GARBAGE = [(raw, "") for raw in (b"[]", b"{", b"12", b'{"id":"a","ID":"b"}', GO + b"x")]


@pytest.mark.parametrize(("raw", "why"), [*GARBAGE, *MORE_GARBAGE])
def test_the_reason_why_bytes_are_no_job_names_the_field(raw: bytes, why: str) -> None:
    assert why in flaw(raw)
    assert flaw(raw)
    wire = decode(raw)
    assert wire is None or payload_of(wire) is None


@pytest.mark.parametrize(("raw", "why"), [*GARBAGE, *MORE_GARBAGE])
async def test_what_is_no_job_is_buried_with_its_bytes(peer: Peer, raw: bytes, why: str) -> None:
    await peer.known("low")
    await peer.push(raw, GO)
    (waiting, _) = await peer.redis.jobs.page(JobState.READY, EVERYTHING, None, 10)
    assert waiting.reason is Reason.INVALID_PAYLOAD or decode(raw) is not None
    await peer.redis.jobs.counts()
    assert [each.kind for each in await peer.redis.fsck.check(repair=False, heartbeat_timeout=HEARTBEAT_TIMEOUT)] == [
        "invalid_entry"
    ]
    answer = await peer.redis.jobs.claim(["low"], 10, worker="w1", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=fresh())
    (rejected,) = answer.rejected
    assert ([each.job.id for each in answer.jobs], why in rejected.error, rejected.queue) == ([FILE.id], True, "low")
    (dead,) = await peer.redis.jobs.page(JobState.DEAD, EVERYTHING, None, 10)
    assert (dead.reason, dead.queue, why in dead.error) == (Reason.INVALID_PAYLOAD, "low", True)
    assert await peer.redis.jobs.get(dead.id) is not None or not dead.id.startswith("unreadable")
    bodies = await peer.list("dead_letter")
    assert bodies == [raw] or (decode(raw) is not None and msgspec.json.decode(bodies[0])["payload_b64"] == "?")
    assert await peer.list("worker:w1:processing") == [GO]


@pytest.mark.parametrize("raw", [raw for raw, _ in GARBAGE])
async def test_what_is_no_job_is_rescued_from_a_worker_that_died_with_it(peer: Peer, raw: bytes) -> None:
    """Another program's worker had it, or one of an older version of ours."""
    await peer.do("LPUSH", f"{peer.root}:worker:gone:processing", raw)
    await peer.redis.strays.scan(None, 1_000_000, heartbeat_timeout=timedelta(milliseconds=1), dry=False)
    overdue: tuple[JobInfo, ...] = ()
    async with asyncio.timeout(10):  # the server's own clock
        while not overdue:
            overdue = (await peer.redis.jobs.overdue(None, 10)).items
    (held,) = overdue
    (outcome,) = await peer.redis.jobs.move([DeadLetterJob(held.claim, Reason.INVALID_PAYLOAD, error=held.error)])
    assert (outcome, await peer.list("worker:gone:processing")) == (Outcome.DONE, [])
    assert len(await peer.list("dead_letter")) == 1


async def test_a_repair_dead_letters_entries_that_are_no_job(peer: Peer) -> None:
    await peer.known("low")
    await peer.push(*[raw for raw, _ in GARBAGE], GO)
    (found, *_) = await peer.redis.fsck.check(repair=True, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert (found.kind, found.count, found.repaired) == ("invalid_entry", len(GARBAGE), len(GARBAGE))
    dead = await peer.redis.jobs.page(JobState.DEAD, EVERYTHING, None, 100)
    assert ({each.reason for each in dead}, len(dead)) == ({Reason.INVALID_PAYLOAD}, len(GARBAGE))
    assert await peer.list("queue:low") == [GO]


async def test_scores_of_other_programs_are_listed_page_by_page(peer: Peer) -> None:
    """A delayed job may be due at a fraction of a millisecond, or never."""
    key = f"{peer.root}:queue:low:delayed"
    for n, score in enumerate(["4102444800000.5", "4102444800000.5", "1e300", "inf", "inf", "-inf", "-1e300"]):
        await peer.do("ZADD", key, score, b'%016d:{"id":"job-%d"}' % (n, n))
    await peer.known("low")
    found, after = list[str](), None
    while True:
        page = await peer.redis.jobs.page(JobState.READY, EVERYTHING, after, 1)
        found += [each.id for each in page]
        if not page.more:
            break
        after = page.cursor
    assert sorted(found) == [f"job-{n}" for n in range(7)]
    assert (await peer.redis.jobs.counts()).queues[0].ready == 2


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        (b'"id":"a\\n\\u0000"', {"id": "a\n\0"}),
        (b'"id":7', {"id": "7"}),
        (b'"id":"b5fe\xc3\xa9 <&> \xf0\x9f\x90\x9f"', {"id": "b5fe\u00e9 <&> \U0001f41f"}),
        (b'"id":"a","filesize":"12","retries":"1"', {"filesize": 12, "retries": 1}),
        (b'"id":"a","filesize":12.0,"attempts":2e0', {"filesize": 12, "attempts": 2}),
        (b'"id":"a","creation_time":""', {"creation_time": EPOCH}),
        (b'"id":"a","creation_time":null,"headers":null', {"creation_time": EPOCH, "headers": None}),
        (b'"id":"a","creation_time":1767323045', {"creation_time": MOMENT}),
        (b'"id":"a","creation_time":1767323045000', {"creation_time": MOMENT}),
        (b'"id":"a","creation_time":1767323045.0', {"creation_time": MOMENT}),
        (b'"id":"a","creation_time":"1767323045"', {"creation_time": MOMENT}),
        (b'"id":"a","creation_time":"2026-01-02T04:04:05+01:00"', {"creation_time": MOMENT}),
        (b'"id":"a","creation_time":"2026-01-02T03:04:05"', {"creation_time": MOMENT}),
        (b'"id":"a","creation_time":"2026-01-02"', {"creation_time": MOMENT.replace(hour=0, minute=0, second=0)}),
        (b'"id":"a","creation_time":"0001-01-01T00:00:00Z"', {"creation_time": EARLIEST}),
        (b'"id":"a","timeout":"30","delay":0.5', {"timeout": 30.0, "delay": 0.5}),
        (b'"id":"a","headers":{"n":1}', {"headers": {"n": "1"}}),
        (b'"id":"a","priority":3,"x":[[1]]', {"priority": "3"}),
    ],
)
async def test_fields_with_one_meaning_are_read_in_any_spelling(
    peer: Peer, fields: bytes, read: dict[str, object]
) -> None:
    raw = b"{%b}" % fields
    wire = decode(raw)
    assert wire is not None
    assert {name: getattr(wire, name) for name in read} == read
    await peer.push(raw)
    (claimed,) = await peer.jobs_client.claim()
    assert claimed.job.id == wire.id
    assert await peer.jobs_client.state(wire.id) is JobState.RUNNING
    await peer.jobs_client.fail(claimed.claim)
    (again,) = await peer.jobs_client.claim()
    assert (again.failures, again.attempt) == (wire.retries + 1, wire.attempts + 2)
    await peer.jobs_client.complete(again.claim)
    assert await peer.jobs_client.state(wire.id) is JobState.DONE
    assert await peer.redis.fsck.check(repair=False, heartbeat_timeout=HEARTBEAT_TIMEOUT) == ()


async def test_a_take_goes_on_behind_what_is_no_job(peer: Peer) -> None:
    await peer.push(*[b"null"] * 5, GO)
    assert [each.job.id for each in await peer.jobs_client.claim(limit=2)] == [FILE.id]


async def test_what_is_no_job_takes_no_id(peer: Peer) -> None:
    await peer.push(b'{"id":"a","filesize":1.5}')
    await peer.jobs_client.claim()
    assert (await peer.jobs_client.enqueue("a"), await peer.do("EXISTS", f"{peer.root}:where")) == ([True], 0)


@pytest.mark.parametrize("extra", [b"", b',"colour":"red"', b',"trace_id":null', b',"nested":{"ID":1}'])
async def test_a_job_of_the_origin_runs(peer: Peer, extra: bytes) -> None:
    await peer.push(b'{"id":"a","filepath":"/x","filesize":3,"priority":"low"' + extra + b"}")
    (claimed,) = await peer.jobs_client.claim()
    assert (claimed.job.id, claimed.job.payload) == ("a", b'{"filepath":"/x","filesize":3}')


# The lists


async def test_jobs_of_any_program_are_served_in_the_order_they_were_pushed(peer: Peer) -> None:
    await peer.push(*(b'{"id":"job-%d"}' % n for n in range(3)))
    await peer.jobs_client.enqueue("ours")
    assert [each.job.id for each in await peer.jobs_client.claim()] == ["job-0", "job-1", "job-2", "ours"]


async def test_a_queue_named_by_its_key_is_that_key(peer: Peer) -> None:
    queue = f"{peer.root}:high_priority"
    await peer.push(GO, queue="high_priority")
    (claimed,) = await peer.jobs_client.claim(queues=[queue])
    await peer.jobs_client.fail(claimed.claim)
    assert len(await peer.list("high_priority")) == 1


@pytest.mark.parametrize("name", ["held", "completed", "requests:1", "workers:info"])
async def test_a_queue_cannot_be_one_of_our_own_keys(peer: Peer, name: str) -> None:
    with pytest.raises(UsageError, match="queue"):
        await peer.jobs_client.enqueue(Job("a", queue=f"{peer.root}:{name}"))


async def test_a_job_is_in_exactly_one_list_after_every_step(peer: Peer) -> None:
    places = []

    async def look() -> None:
        places.append(await peer.everywhere())

    await peer.jobs_client.enqueue("a")
    await look()
    claim = await peer.jobs_client.claim_one()
    await look()
    await peer.jobs_client.fail(claim)
    await look()
    await peer.jobs_client.fail(await peer.jobs_client.claim_one(), delay=HEARTBEAT_TIMEOUT)
    await look()
    await peer.jobs_client.enqueue("b")
    (b,) = [each for each in await peer.jobs_client.claim() if each.job.id == "b"]
    await peer.jobs_client.dead_letter(b.claim)
    places.append([id for id in await peer.everywhere() if id == "b"])
    assert places == [["a"], ["a"], ["a"], ["a"], ["b"]]


async def test_a_success_moves_the_very_bytes_and_ends_the_heartbeat(peer: Peer) -> None:
    raw = b'{ "priority":"low", "id" : "a", "mine": [1.0, 2] }'
    await peer.push(raw)
    (claimed,) = await peer.jobs_client.claim(heartbeat_timeout=timedelta(hours=1))
    held = await peer.list("worker:w1:processing"), await peer.do("EXISTS", f"{peer.root}:processing:worker:w1")
    await peer.jobs_client.complete(claimed.claim)
    assert held == ([raw], 1)
    assert (await peer.list("completed"), await peer.list("worker:w1:processing")) == ([raw], [])
    # For a moment it stays: whoever has seen the list asks for the heartbeat next, and may find a new entry after that.
    assert 0 < await peer.do("PTTL", f"{peer.root}:processing:worker:w1") <= 5_000


async def test_the_heartbeat_stays_while_anything_is_held(peer: Peer) -> None:
    await peer.jobs_client.enqueue("a", "b")
    a, b = [claimed.claim for claimed in await peer.jobs_client.claim(heartbeat_timeout=timedelta(hours=1))]
    await peer.jobs_client.complete(a)
    between = await peer.do("PTTL", f"{peer.root}:processing:worker:w1")
    await peer.jobs_client.complete(b)
    assert between > 5_000 >= await peer.do("PTTL", f"{peer.root}:processing:worker:w1")


async def test_who_says_goodbye_leaves_no_heartbeat(peer: Peer) -> None:
    await peer.jobs_client.enqueue("a")
    await peer.jobs_client.complete(
        *[claimed.claim for claimed in await peer.jobs_client.claim(heartbeat_timeout=timedelta(hours=1))]
    )
    await peer.jobs_client.heartbeat(heartbeat_timeout=timedelta(0))
    assert await peer.do("EXISTS", f"{peer.root}:processing:worker:w1") == 0


async def test_a_beat_renews_the_heartbeat_of_one_who_holds_something(peer: Peer) -> None:
    claim = await peer.jobs_client.claimed("a")
    await peer.do("DEL", f"{peer.root}:processing:worker:w1")
    await peer.jobs_client.heartbeat(claim)
    left = await peer.do("PTTL", f"{peer.root}:processing:worker:w1")
    assert isinstance(left, int)
    assert 0 < left <= HEARTBEAT_TIMEOUT.total_seconds() * 1000


async def test_a_finish_is_lost_when_its_entry_is_gone(peer: Peer) -> None:
    claim = await peer.jobs_client.claimed("a")
    await peer.do("DEL", f"{peer.root}:worker:w1:processing")
    outcomes = await peer.jobs_client.complete(claim)
    assert (outcomes, await peer.list("completed"), await peer.jobs_client.state("a")) == ([Outcome.CONFLICT], [], None)


async def test_of_two_equal_jobs_each_is_finished_once(peer: Peer) -> None:
    await peer.push(GO, GO)
    first, second = [claimed.claim for claimed in await peer.jobs_client.claim()]
    await peer.jobs_client.complete(first)
    left = await peer.list("worker:w1:processing")
    outcomes = await peer.jobs_client.complete(first) + await peer.jobs_client.complete(second)
    assert (left, outcomes) == ([GO], [Outcome.CONFLICT, Outcome.DONE])
    assert (await peer.list("completed"), await peer.list("worker:w1:processing")) == ([GO, GO], [])


async def test_a_finish_named_twice_in_one_batch_removes_one_of_two_equal_jobs(peer: Peer) -> None:
    await peer.push(GO, GO)
    first, _ = [claimed.claim for claimed in await peer.jobs_client.claim()]
    outcomes = await peer.jobs_client.complete(first, first)
    assert (outcomes, await peer.list("worker:w1:processing")) == ([Outcome.DONE, Outcome.CONFLICT], [GO])


async def test_an_id_that_was_made_is_known_once_its_job_was_taken(peer: Peer) -> None:
    await peer.jobs_client.jobs.enqueue([Job("made", minted=True)], request=fresh())
    await peer.jobs_client.claim_one()
    single = await peer.jobs_client.enqueue(Job("made", delay=HEARTBEAT_TIMEOUT))
    assert (single, await peer.jobs_client.enqueue("made", "other")) == ([False], [False, True])


async def test_a_job_that_waits_again_is_in_no_index(peer: Peer) -> None:
    await peer.jobs_client.fail(await peer.jobs_client.claimed("a"))
    names = ("where", "held", "holds", "done", "dead", "finished")
    assert await peer.do("EXISTS", *(f"{peer.root}:{name}" for name in names)) == 0


async def test_a_group_that_is_known_stays_as_it_was_opened(peer: Peer) -> None:
    members = [Job(id, group="g") for id in "ab"]
    await peer.jobs_client.jobs.enqueue(members, request=fresh(), groups=[JobGroup("g", 2, Job("callback"))])
    await peer.jobs_client.jobs.enqueue([], request=fresh(), groups=[JobGroup("g", 1, Job("another"))])
    a, b = [claimed.claim for claimed in await peer.jobs_client.claim()]
    await peer.jobs_client.complete(a)
    early = await peer.list("queue:low")
    await peer.jobs_client.complete(b)
    (callback,) = await peer.jobs_client.claim()
    assert (early, callback.job.id) == ([], "callback")


async def test_nothing_is_counted_for_a_group_that_was_called(peer: Peer) -> None:
    group = JobGroup("g", 1, Job("callback", queue="other"))
    await peer.jobs_client.jobs.enqueue([Job("a", group="g"), Job("b", group="g")], request=fresh(), groups=[group])
    await peer.jobs_client.complete(*[claimed.claim for claimed in await peer.jobs_client.claim()])
    assert await peer.do("HGETALL", f"{peer.root}:groups") == [b"f:g", b"1"]


async def test_the_completed_list_never_exceeds_its_bound(redis_server: Valkey) -> None:
    peer = await opened(redis_server, done_max=2)
    await peer.jobs_client.enqueue(*"abcde")
    await peer.jobs_client.complete(*[claimed.claim for claimed in await peer.jobs_client.claim()])
    listed = [msgspec.json.decode(raw)["id"] for raw in await peer.list("completed")]
    await peer.redis.close()
    assert listed == ["e", "d"]


async def test_the_completed_list_can_be_turned_off(redis_server: Valkey) -> None:
    peer = await opened(redis_server, done_max=0)
    await peer.jobs_client.enqueue("a")
    await peer.jobs_client.complete(await peer.jobs_client.claim_one())
    listed = await peer.list("completed")
    left = await peer.do("EXISTS", *(f"{peer.root}:{name}" for name in ("done", "finished", "where", "ids", "holds")))
    await peer.redis.close()
    assert (listed, left) == ([], 0)


async def test_a_dead_letter_says_why_and_keeps_what_it_does_not_know(peer: Peer) -> None:
    await peer.push(b'{"id":"a","colour":"red","priority":"low"}')
    await peer.jobs_client.dead_letter(await peer.jobs_client.claim_one())
    (letter,) = [msgspec.json.decode(raw) for raw in await peer.list("dead_letter")]
    assert (letter["error"], letter["reason"], letter["colour"]) == ("it broke", "failed", "red")
    assert datetime.fromisoformat(letter["failed_at"]).tzinfo is not None


async def test_a_worker_of_the_origin_finishes_our_job(peer: Peer) -> None:
    await peer.jobs_client.enqueue(FILE)
    (raw,) = await peer.list(f"queue:{HIGH}")
    theirs, list_ = f"{peer.root}:worker:go-1:processing", f"{peer.root}:queue:{HIGH}"
    await peer.do("BRPOPLPUSH", list_, theirs, 1)
    await peer.do("SET", f"{peer.root}:processing:worker:go-1", raw, "EX", 30)
    await peer.do("LPUSH", f"{peer.root}:completed", raw)
    removed = await peer.do("LREM", theirs, 1, raw)
    read = decode(raw)
    assert (removed, await peer.list("completed")) == (1, [raw])
    assert read is not None
    assert job_of(read, HIGH) == FILE


async def test_a_job_settled_by_another_process_leaves_the_list_of_its_taker(peer: Peer) -> None:
    claim = await peer.jobs_client.claimed("a")
    other = await Redis.open(peer.redis.client.options)
    outcomes = await other.jobs.settle([Complete(claim)], request=fresh())
    await other.close()
    assert (list(outcomes), await peer.list("worker:w1:processing")) == ([Outcome.DONE], [])


async def test_a_queued_job_costs_its_bytes_and_little_more(peer: Peer) -> None:
    def used(info: object) -> int:
        assert isinstance(info, bytes)
        return int(info.partition(b"used_memory:")[2].partition(b"\r")[0])

    batch = [Job(f"{n:026}", payload=b"x" * 40, minted=True) for n in range(1_000)]
    await peer.jobs_client.jobs.enqueue(batch, request=fresh())
    before = used(await peer.do("INFO", "memory"))
    for _ in range(10):
        await peer.jobs_client.jobs.enqueue(batch, request=fresh())
    spent = (used(await peer.do("INFO", "memory")) - before) / 10_000
    assert spent <= len((await peer.list("queue:low"))[0]) + 64


async def test_answers_are_remembered_for_a_minute_and_forgotten_in_the_third(redis_server: Valkey) -> None:
    clock = ManualClock(datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC))
    options = RedisOptions(nodes=(("127.0.0.1", redis_server.port),), root=f"t{uuid4().hex}")
    redis = await Redis.open(options, clock, time=clock)
    new = []
    for pause in (0, 60, 180):
        clock.advance(timedelta(seconds=pause))
        new += [put.new for put in await redis.jobs.enqueue([Job("a"), Job("b", unique="n")], request="same")]
    kept = await redis.client.ask("HLEN", f"{options.root}:requests:{int(clock.now().timestamp()) // 60 % 3}")
    await redis.close()
    assert (new, kept) == ([True, True, True, True, False, False], 2)


# Waking


async def test_our_own_put_wakes_a_taker_that_would_not_look_by_itself(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "POLL", 60)
    waiting = asyncio.create_task(peer.jobs_client.claim(wait=timedelta(seconds=30)))
    await _blocked(peer)
    await peer.jobs_client.enqueue("a")
    async with asyncio.timeout(10):
        assert [claimed.job.id for claimed in await waiting] == ["a"]


async def test_a_listener_that_lost_its_server_says_so_and_hears_again(
    redis_server: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="wrasse.jobs")
    async with proxy(redis_server.port) as between:
        redis = await Redis.open(RedisOptions(nodes=(("127.0.0.1", between.port),), root=f"t{uuid4().hex}"))
        bells = queue.RedisWakeups(redis.client)
        with bells.waiting([f"{redis.client.options.root}:queue:low:wake"], timedelta(minutes=1)):
            between.refuse = True
            between.cut()
            await _said(caplog, "wakeups are not received")
            between.refuse = False
            await _said(caplog, "wakeups are received again")
        await bells.close()
        await redis.close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def _said(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async with asyncio.timeout(20):
        while words not in caplog.text:  # noqa: ASYNC110  (a log tells nobody that it grew)
            await asyncio.sleep(0.02)


async def test_a_put_leaves_only_a_few_tokens_for_those_who_wait(peer: Peer) -> None:
    await peer.jobs_client.jobs.enqueue([Job(f"{n:026}", minted=True) for n in range(1_000)], request=fresh())
    await peer.jobs_client.enqueue(*(f"given-{n}" for n in range(100)))
    assert len(await peer.list("queue:low:wake")) == 8


async def test_a_job_that_another_program_pushes_is_found_while_a_taker_waits(peer: Peer) -> None:
    waiting = asyncio.create_task(peer.jobs_client.claim(wait=timedelta(seconds=30)))
    await asyncio.sleep(0.1)
    await peer.push(GO)
    async with asyncio.timeout(10):
        assert [claimed.job.id for claimed in await waiting] == [FILE.id]


async def test_a_taker_is_not_deaf_after_its_connections_were_cut() -> None:
    with valkey() as server:
        peer = await opened(server)
        other = Peer(await Redis.open(peer.redis.client.options))
        waiting = asyncio.create_task(peer.jobs_client.claim(wait=timedelta(seconds=30)))
        for client in await _blocked(other):
            await other.do("CLIENT", "KILL", "ID", client)
        await _blocked(other)  # it listens again
        await other.jobs_client.enqueue("a")
        async with asyncio.timeout(10):
            assert [claimed.job.id for claimed in await waiting] == ["a"]
        await peer.redis.close()
        await other.redis.close()


async def _blocked(peer: Peer) -> list[str]:
    """The connections that wait at the server, once there are any."""
    async with asyncio.timeout(10):
        while True:
            listed = await peer.do("CLIENT", "LIST")
            assert isinstance(listed, bytes)
            clients = [dict(pair.split("=", 1) for pair in line.split()) for line in listed.decode().splitlines()]
            found = [client["id"] for client in clients if client["cmd"] == "blpop" and "b" in client["flags"]]
            if found:
                return found
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("jump", [timedelta(days=-2), timedelta(days=2)])
async def test_attempts_end_by_the_servers_time_also_after_the_clock_of_the_host_was_set(
    peer: Peer, jump: timedelta
) -> None:
    clock = ManualClock()
    redis = await Redis.open(peer.redis.client.options, clock)
    jobs_client = QueueClient(redis.jobs)
    await jobs_client.enqueue("a")
    (claimed,) = await jobs_client.claim()
    clock.step(jump)
    await jobs_client.settle(DeadLetterJob(claimed.claim, Reason.FAILED, error="it broke"))
    record = await redis.jobs.get("a")
    await redis.close()
    assert record is not None
    assert abs(record.history[-1].ended_at - record.history[-1].claimed_at) < timedelta(days=1)
