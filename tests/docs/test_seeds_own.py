"""What the design documents' own algorithms break, where wrasse does something else: each is carried out as it is
written, on a real Redis or on paper, and breaks the promise that it was written for. docs/design/seeds.md names them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
import redis
import redis.asyncio
import yaml

from archives.test_archiver import SEED_ARCHIVAL
from conformance.object_stores import versioned_bucket
from servers.seaweed import S3 as S3Server
from servers.valkey import Valkey
from virtual_time import run_virtual
from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.s3.client import Client
from wrasse.backends.s3.connect import S3
from wrasse.clock import SystemClock
from wrasse.config.load import load
from wrasse.leases.transactions.manager import OPERATIONS_MAX
from wrasse.ports.objects import ObjectDelete
from wrasse.ports.outcome import Outcome

HOUR = timedelta(hours=1)


@pytest.fixture
def client(redis_server: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port, decode_responses=True) as one:
        yield one


@pytest.fixture
def root(client: redis.Redis) -> Iterator[str]:
    """What the keys of this test begin with."""
    name = f"own{uuid4().hex}"
    yield name
    for key in client.scan_iter(f"{name}:*"):
        client.delete(key)


def days_ago(days: float) -> int:
    return int((time.time() - days * 86_400) * 1_000)


# 000: sweeper


class Task:
    """A record of the state store, as far as the documents' sweeper looks at it."""

    def __init__(self) -> None:
        self.state, self.updated_at, self.retry_count = "pending", 0.0, 0


def sweep(tasks: list[Task], now: float, timeout: float) -> int:
    """The document's sweep; how many events it published."""
    told = 0
    for task in tasks:
        if task.state not in ("completed", "failed") and task.updated_at < now - timeout:
            if task.retry_count >= 3:
                task.state = "failed"
                continue
            task.state, task.updated_at, task.retry_count = "pending", now, task.retry_count + 1
            told += 1
    return told


def test_every_task_that_is_not_terminal_may_be_stuck_fails_a_backlog() -> None:
    waiting = [Task() for _ in range(10)]  # no worker has come to them yet
    told = [sweep(waiting, now, 300) for now in range(301, 1_600, 301)]
    assert told == [10, 10, 10, 0, 0], "each is published three times more, for nobody claimed it"
    assert {task.state for task in waiting} == {"failed"}, "and has failed without having run"


def test_a_crash_between_reset_and_event_spends_a_retry_for_nothing(client: redis.Redis, root: str) -> None:
    record, queue = f"{root}:task", f"{root}:queue"
    client.hset(record, mapping={"state": "running", "retry_count": 0})
    for _ in range(3):  # a sweeper resets, and dies before it publishes
        client.hset(record, mapping={"state": "pending"})
        client.hincrby(record, "retry_count", 1)
    assert (client.hget(record, "retry_count"), client.xlen(queue)) == ("3", 0), "spent, and no worker ever heard of it"


def test_removing_a_dead_consumer_drops_what_it_held(client: redis.Redis, root: str) -> None:
    client.xgroup_create(root + ":s", "workers", "0", mkstream=True)
    client.xadd(root + ":s", {"n": 1})
    client.xreadgroup("workers", "dead", {root + ":s": ">"})
    client.xgroup_delconsumer(root + ":s", "workers", "dead")
    assert client.xpending(root + ":s", "workers")["pending"] == 0
    assert not client.xreadgroup("workers", "alive", {root + ":s": ">"}), "nobody is ever given it again"


def test_an_approximate_trim_leaves_a_short_stream_for_ever(client: redis.Redis, root: str) -> None:
    for number in range(50):
        client.xadd(root + ":s", {"n": number}, id=f"{days_ago(30)}-{number + 1}")
    client.xadd(root + ":s", {"n": "new"})  # in the same node, which is not full for a long time
    assert client.xtrim(root + ":s", minid=days_ago(7), approximate=True) == 0
    assert client.xtrim(root + ":s", minid=days_ago(7), approximate=False) == 50


def test_a_queue_trimmed_by_age_loses_what_nobody_claimed(client: redis.Redis, root: str) -> None:
    client.xgroup_create(root + ":queue", "mail-workers", "0", mkstream=True)
    client.xadd(root + ":queue", {"task": "t1"}, id=f"{days_ago(2)}-1")
    client.xtrim(root + ":queue", minid=days_ago(1), approximate=False)
    assert not client.xreadgroup("mail-workers", "w1", {root + ":queue": ">"}), "the task will never run"


def test_dead_letters_trimmed_by_age_are_gone_for_good(client: redis.Redis, root: str) -> None:
    client.xadd(root + ":dead", {"task": "t1"}, id=f"{days_ago(8)}-1")
    assert client.xtrim(root + ":dead", minid=days_ago(7), approximate=False) == 1
    assert client.xlen(root + ":dead") == 0, "it was the only copy"


def test_the_lock_of_a_killed_sweeper_stops_every_other_for_its_whole_time(client: redis.Redis, root: str) -> None:
    assert client.set(root + ":lock", "sweeper-1", nx=True, px=60_000)  # and it is killed
    assert not client.set(root + ":lock", "sweeper-2", nx=True, px=60_000)
    assert client.pttl(root + ":lock") > 50_000, "nobody sweeps for about a minute"


# 000: archiver


def test_what_a_dead_member_of_a_group_was_given_reaches_nobody(client: redis.Redis, root: str) -> None:
    client.xgroup_create(root + ":s", "archiver", "0", mkstream=True)
    client.xadd(root + ":s", {"n": 1})
    client.xreadgroup("archiver", "dead", {root + ":s": ">"})
    assert not client.xreadgroup("archiver", "its successor", {root + ":s": ">"})
    assert client.xpending(root + ":s", "archiver")["pending"] == 1, "pending for ever"


def test_the_key_of_an_archive_cannot_be_built_from_the_block_archival() -> None:
    (block,) = yaml.safe_load(SEED_ARCHIVAL)["archival"]
    with pytest.raises(KeyError, match="bucket"):
        "s3://{bucket}/archive/{domain}".format(**block, domain="audit")


def test_an_archiver_that_numbers_its_batches_overwrites_them_after_a_restart(tmp_path: Path) -> None:
    for run in (["one", "two"], ["three"]):  # it counts in memory
        for number, batch in enumerate(run, 1):
            (tmp_path / f"batch_{number:03}.jsonl").write_text(batch)
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["three", "two"], "the first batch is lost"


def test_an_archiver_that_never_ran_has_nothing_pending(client: redis.Redis, root: str) -> None:
    client.xgroup_create(root + ":s", "archiver", "0", mkstream=True)
    client.xadd(root + ":s", {"n": 1}, id=f"{days_ago(8)}-1")
    assert client.xpending(root + ":s", "archiver")["pending"] == 0, "no lag at all, so the guard rail lets the trim go"
    client.xtrim(root + ":s", minid=days_ago(7), approximate=False)
    assert client.xlen(root + ":s") == 0, "and what was never archived is gone"


# 001 and 003: leases


def test_a_suffix_of_records_changes_the_order_of_a_listing() -> None:
    keys = ["a", "a!", "a/b"]
    assert sorted(keys) == keys
    assert sorted(f"{key}.pb" for key in keys) != [f"{key}.pb" for key in keys], "no page can go on after a key"


def test_a_probe_every_few_seconds_keeps_a_server_busy_for_ever() -> None:
    last, swept, grace = 0, 0, 300
    for now in range(86_400):
        if now % 15 == 0:
            last = now  # a monitor asks whether it is alive
        swept += now - last >= grace
    assert swept == 0, "in a day"


def test_one_namespace_after_another_starves_the_second() -> None:
    busy, quiet, cap = deque(range(1_000)), deque(range(10)), 1_000
    for _ in range(100):  # runs, each of which ends at its cap
        spent = 0
        for namespace in (busy, quiet):
            while namespace and spent < cap:
                namespace.popleft()
                spent += 1
        busy.extend(range(1_000))  # leases that expired meanwhile
    assert len(quiet) == 10, "of the second nothing was ever cleared"


def test_a_replay_inside_a_request_makes_its_caller_wait() -> None:
    async def request(*, replays_first: bool) -> float:
        begun = asyncio.get_running_loop().time()
        for _ in range(OPERATIONS_MAX if replays_first else 0):
            await asyncio.sleep(0.01)  # a store answers about another caller's transaction
        await asyncio.sleep(0.01)  # and now about the key of this one
        return asyncio.get_running_loop().time() - begun

    assert run_virtual(request(replays_first=True)) > 100 * run_virtual(request(replays_first=False))


def test_sweepers_that_know_only_their_own_namespaces_leave_those_of_a_dead_server() -> None:
    expired, seen = {"ns-of-a", "ns-of-b"}, {"a": {"ns-of-a"}, "b": {"ns-of-b"}}
    del seen["b"]  # the server ends; its clients go elsewhere, and nobody touches that namespace again
    for known in seen.values():
        expired -= known
    assert expired == {"ns-of-b"}


def test_a_janitor_that_goes_by_age_alone_takes_the_state_of_a_key_that_is_held() -> None:
    # An update stages its state beside the committed one; renewals do not touch the state at all.
    now, retention = 100 * HOUR, 24 * HOUR
    record, state = {"updated_at": now, "token": 7, "held": True}, {"updated_at": now - 30 * HOUR}
    left = [each for each in (record, state) if now - each["updated_at"] <= retention]
    assert left == [record], "its holder has a lease on a state that is gone"


# 002: job queue


async def test_a_pool_opens_a_connection_for_every_command_under_way(redis_server: Valkey) -> None:
    pool = redis.asyncio.ConnectionPool(port=redis_server.port, max_connections=100)
    many, own = redis.asyncio.Redis(connection_pool=pool), await OwnRedisClient.open(RedisOptions.of(redis_server.url))
    try:
        before = len(await many.client_list())
        await asyncio.gather(*(many.ping() for _ in range(50)))
        theirs = len(await many.client_list()) - before
        await asyncio.gather(*(own.ask("PING") for _ in range(50)))
        ours = len(await many.client_list()) - before - theirs
    finally:
        await own.close()
        await many.aclose()
        await pool.aclose()
    assert theirs >= 20
    assert ours <= 1


def test_defaults_in_the_place_of_a_missing_file_send_jobs_elsewhere(place: Path) -> None:
    (place / "jobs.yaml").write_text("redis: {addr: 'queue.example:6379'}")
    assert load("jobs.yaml", environ={}).homes.jobs.startswith("redis://queue.example:6379/0")
    assert load(environ={}).homes.jobs == "sqlite:wrasse.db", "what --config=job.yaml would use, without a word"


def test_asking_one_queue_after_another_delays_the_low_one_by_the_timeout(client: redis.Redis, root: str) -> None:
    timeout, begun, served = 0.2, time.monotonic(), None
    client.lpush(root + ":low", "job")
    for queue in ("high", "low"):
        served = served or client.brpoplpush(f"{root}:{queue}", root + ":processing", timeout)
    assert served == "job"
    assert time.monotonic() - begun >= timeout, "for each low job, while there are no high ones"


def seeds_reaper(client: redis.Redis, root: str, *, beat: str = "beat") -> list[str]:
    """The reaper of the document: each processing list without a heartbeat loses its jobs to the queue."""
    moved = []
    for key in client.scan_iter(f"{root}:worker:*:processing", count=100):
        worker = key.split(":")[-2]
        if not client.exists(f"{root}:{beat}:{worker}"):
            for payload in client.lrange(key, 0, -1):
                client.lrem(key, 1, payload)
                client.lpush(f"{root}:low", payload)
                moved.append(payload)
    return moved


def fetch(client: redis.Redis, root: str, worker: str = "w1") -> None:
    client.rpoplpush(f"{root}:low", f"{root}:worker:{worker}:processing")


def test_a_worker_between_fetch_and_heartbeat_looks_dead(client: redis.Redis, root: str) -> None:
    client.lpush(f"{root}:low", "job")
    fetch(client, root)
    assert seeds_reaper(client, root) == ["job"], "of a worker that lives, and sends its heartbeat now"
    client.set(f"{root}:beat:w1", "job", ex=30)
    assert client.llen(f"{root}:low") == 1, "another worker runs it, too"


def test_a_heartbeat_that_is_set_once_ends_while_its_job_runs(client: redis.Redis, root: str) -> None:
    client.lpush(f"{root}:low", "job")
    fetch(client, root)
    client.set(f"{root}:beat:w1", "job", px=50)
    assert seeds_reaper(client, root) == []
    time.sleep(0.2)  # the job is longer than heartbeat_ttl
    assert seeds_reaper(client, root) == ["job"]


def test_three_commands_of_which_the_last_two_are_lost_run_a_job_twice(client: redis.Redis, root: str) -> None:
    client.lpush(f"{root}:low", "job")
    fetch(client, root)
    client.lpush(f"{root}:completed", "job")  # and the worker is killed
    assert seeds_reaper(client, root) == ["job"]
    assert (client.llen(f"{root}:completed"), client.llen(f"{root}:low")) == (1, 1), "done, and waiting to be done"


def test_deleting_the_heartbeat_with_one_job_gives_up_the_others(client: redis.Redis, root: str) -> None:
    client.lpush(f"{root}:low", "long", "short")
    fetch(client, root)
    fetch(client, root)
    client.set(f"{root}:beat:w1", "short", ex=30)
    client.lrem(f"{root}:worker:w1:processing", 1, "short")
    client.delete(f"{root}:beat:w1")
    assert seeds_reaper(client, root) == ["long"], "which is still running"


def test_the_reapers_key_is_not_the_one_that_workers_set(client: redis.Redis, root: str) -> None:
    client.lpush(f"{root}:low", "job")
    fetch(client, root)
    client.set(f"{root}:processing:worker:w1", "job", ex=30)  # heartbeat_key_pattern
    assert seeds_reaper(client, root, beat="worker:hb") == ["job"]


def test_a_pass_that_begins_anew_never_sees_the_last_lists(client: redis.Redis, root: str) -> None:
    for number in range(1_000):
        client.lpush(f"{root}:worker:w{number}:processing", "job")
    seen: set[str] = set()
    for _ in range(20):  # passes that end after their first pages, as after 200 ms among many keys
        cursor, pages = 0, 0
        while pages < 2:
            cursor, keys = client.scan(cursor, f"{root}:worker:*:processing", 100)
            seen |= set(keys)
            pages += 1
    assert 0 < len(seen) < 500, "the others are never looked at"


def test_a_rescued_job_that_is_pushed_like_a_new_one_is_served_last(client: redis.Redis, root: str) -> None:
    client.lpush(f"{root}:low", "oldest", "b", "c")
    fetch(client, root)
    assert seeds_reaper(client, root) == ["oldest"]
    assert [client.rpop(f"{root}:low") for _ in range(3)] == ["b", "c", "oldest"]


def test_rescues_that_spend_nothing_go_on_for_ever(client: redis.Redis, root: str) -> None:
    client.lpush(f"{root}:low", '{"id": "poison", "retries": 0}')
    for number in range(50):
        fetch(client, root, f"w{number}")  # it kills this worker before that could count a failure
        assert seeds_reaper(client, root) == ['{"id": "poison", "retries": 0}']


class SeedsBreaker:
    """The breaker of the document: a window of results, three states, and any result decides while it is half-open."""

    def __init__(self) -> None:
        self.state, self.window = "closed", deque[bool](maxlen=20)

    def result(self, ok: bool) -> None:
        self.window.append(ok)
        if self.state == "half-open":
            self.state = "closed" if ok else "open"
        elif len(self.window) == 20 and self.window.count(False) / 20 >= 0.5:
            self.state = "open"


def test_a_half_open_breaker_that_any_result_decides_closes_by_an_old_job() -> None:
    breaker = SeedsBreaker()
    for _ in range(20):
        breaker.result(ok=False)
    assert breaker.state == "open"
    breaker.state = "half-open"  # the cooldown is over, and the service is still down
    breaker.result(ok=True)  # a long job ends that had its answer before the outage
    assert breaker.state == "closed"
    breaker.result(ok=True)
    assert breaker.state == "open", "and a success opens it again: the window is full of failures from before"


def test_a_helper_that_rejects_a_key_costs_the_line_and_the_job() -> None:
    class Rejecting(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            if hasattr(record, "file_name"):
                raise ValueError("file_name is not allowed")
            return True

    log, steps = logging.Logger("own"), list[str]()
    log.addFilter(Rejecting())
    log.addHandler(Listing(steps))

    def handler() -> None:
        log.info("said", extra={"file_name": "a"})
        steps.append("the work itself")

    with pytest.raises(ValueError, match="not allowed"):
        handler()
    assert steps == [], "neither the line nor the work"


class Listing(logging.Handler):
    """Keeps the messages that reach it."""

    def __init__(self, kept: list[str]) -> None:
        super().__init__()
        self.kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(record.getMessage())


# 004: collection of archives


def seeds_collector(interval: timedelta, days: int = 30) -> timedelta | None:
    """When an orphan goes that is one from the beginning, by the document's timer of three hours; None: never."""
    now, first, expires = timedelta(0), None, timedelta(0)
    while now < timedelta(days=days):
        if first is not None and now >= expires:
            first = None
        if first is None:
            first, expires = now, now + 3 * HOUR
        elif now - first > 2 * HOUR:
            return now
        now += interval
    return None


def test_a_timer_that_expires_after_three_hours_deletes_nothing_when_runs_are_late() -> None:
    assert seeds_collector(timedelta(minutes=50)) is not None
    assert [seeds_collector(every * HOUR) for every in (1, 3, 6, 24)] == [None] * 4


def is_protected(path: str, protected: set[str]) -> bool:
    """Word for word."""
    if path in protected:
        return True
    return any(each.endswith("/") and path.startswith(each) for each in protected)


def test_the_documents_rule_deletes_files_of_other_programs() -> None:
    protected = {"archives/ws1/aaa/home.tar.gz", "archives/ws1/aaa/"}
    assert is_protected("archives/ws1/aaa/home.tar.gz.meta", protected)
    assert not is_protected("archives/README.txt", protected)
    assert not is_protected("archives/inventory/2026-01-01.csv", protected)


def test_the_documents_rule_deletes_what_a_truncated_table_does_not_name() -> None:
    archives = [f"archives/ws{number}/aaa/home.tar.gz" for number in range(100)]
    assert not any(is_protected(each, set()) for each in archives), "all of them, two hours later"


async def test_a_delete_in_a_versioned_bucket_frees_nothing(s3: S3Server) -> None:
    store = await S3.open(await versioned_bucket(s3), SystemClock())
    try:
        version = (await store.objects.create("archives/ws1/aaa/home.tar.gz", b"bytes")).version
        assert version is not None
        assert await store.objects.delete([ObjectDelete("archives/ws1/aaa/home.tar.gz", version)]) == [Outcome.DONE]
        versions, _ = await Client(store._wire).versions(store._wire.address.key_prefix.encode(), None)
        assert sorted(each.marker for each in versions) == [False, True], "its bytes are still there"
    finally:
        await store.close()


def test_a_delete_by_key_takes_what_was_written_again() -> None:
    bucket = {"archives/ws1/aaa/home.tar.gz": "old"}
    verdict = next(iter(bucket))  # an orphan for two hours
    bucket[verdict] = "new"  # restored, or archived again under its operation, before the delete
    del bucket[verdict]
    assert "new" not in bucket.values()
