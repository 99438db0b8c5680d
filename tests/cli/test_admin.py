"""The admin commands of the design document, and `wrasse jobs` on Redis, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from backends.redis.peer import go_job
from cli.command_line import Answer, wrasse
from processes.daemons import until
from servers.valkey import Valkey, valkey

HIGH, LOW, DEAD, COMPLETED = (
    "jobqueue:high_priority", "jobqueue:low_priority", "jobqueue:dead_letter", "jobqueue:completed"
)  # fmt: skip
HELD, HEARTBEAT = "jobqueue:worker:go-1:processing", "jobqueue:processing:worker:go-1"
WORK = """
import asyncio
async def work(job):
    await asyncio.sleep(0.3)
async def fail(job):
    raise ValueError("no")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as own:
        yield own


@pytest.fixture
def client(place: Path, server: Valkey) -> Iterator[redis.Redis]:
    """A Redis with nothing in it, named by the settings."""
    (place / "wrasse.yaml").write_text(
        f"redis:\n  addr: 127.0.0.1:{server.port}\nworker:\n  heartbeat_ttl: 5s\n  max_retries: 0\n"
    )
    (place / "measured.py").write_text(WORK)
    with redis.Redis(port=server.port) as own:
        own.flushall()
        yield own


def admin(command: str, *args: str) -> Answer:
    return wrasse("run", "--role=admin", f"--admin-cmd={command}", *args)


def test_stats_are_one_document_with_the_names_of_the_original(client: redis.Redis) -> None:
    client.lpush(HIGH, go_job("a"), go_job("b"))
    client.lpush(DEAD, go_job("c"))
    client.lpush(HELD, go_job("d"), go_job("e"))
    client.set(HEARTBEAT, "x", ex=60)
    assert admin("stats").json == {
        "queues": {f"high({HIGH})": 2, f"low({LOW})": 0, f"completed({COMPLETED})": 0, f"dead_letter({DEAD})": 1},
        "processing_lists": {HELD: 2},
        "heartbeats": 1,
    }


def test_stats_of_keys_count_lists_entries_and_heartbeats_and_name_the_limiter(client: redis.Redis) -> None:
    client.lpush(HELD, go_job("d"), go_job("e"))
    client.set("jobqueue:rate_limit:producer", 7, px=900_000)
    told = admin("stats-keys").json
    assert told["queue_lengths"][f"low({LOW})"] == 0
    assert (told["processing_lists"], told["processing_items"], told["heartbeats"]) == (1, 2, 0)
    assert told["rate_limit_key"] == "jobqueue:rate_limit:producer"
    assert told["rate_limit_ttl"].startswith("14m")


def test_peek_shows_what_is_served_next_first_and_says_so(client: redis.Redis) -> None:
    client.lpush(LOW, go_job("first"), go_job("second"), go_job("third"))
    told = admin("peek", "--queue=low", "--n=2").json
    assert [json.loads(item)["id"] for item in told["items"]] == ["first", "second"]
    assert (told["queue"], told["order"]) == (LOW, "next first")


def test_peek_knows_the_dead_letters_by_both_names_and_lists_by_their_keys(client: redis.Redis) -> None:
    client.lpush(DEAD, go_job("c"))
    by_name = [admin("peek", f"--queue={name}").json for name in ("dlq", "dead_letter")]
    assert by_name[0] == by_name[1]
    assert admin("peek", f"--queue={DEAD}").json["items"] == by_name[0]["items"]


def test_peek_of_an_unknown_name_fails_and_lists_the_known_ones(client: redis.Redis) -> None:
    answer = admin("peek", "--queue=nope")
    assert (answer.code, answer.raw) == (2, b"")
    assert "completed, dead_letter, dlq, high, low" in answer.err


@pytest.mark.parametrize("command", ["purge-dlq", "purge-all"])
def test_a_purge_needs_yes_and_deletes_nothing_without(client: redis.Redis, command: str) -> None:
    client.lpush(DEAD, go_job("c"))
    answer = admin(command)
    assert (answer.code, "--yes" in answer.err, client.llen(DEAD)) == (3, True, 1)


@pytest.mark.parametrize("command", ["purge-dlq", "purge-all"])
def test_a_dry_purge_tells_what_would_go_by_key_and_deletes_nothing(client: redis.Redis, command: str) -> None:
    client.lpush(DEAD, go_job("c"), go_job("d"))
    told = admin(command, "--dry-run").json
    assert (told["keys"][DEAD], told["dry_run"], client.llen(DEAD)) == (2, True, 2)


def test_a_purge_of_dead_letters_leaves_everything_else(client: redis.Redis) -> None:
    client.lpush(DEAD, go_job("c"), go_job("d"))
    client.lpush(LOW, go_job("a"))
    told = admin("purge-dlq", "--yes").json
    assert (told["purged"], told["keys"]) == (2, {DEAD: 2})
    assert (client.exists(DEAD), client.llen(LOW), wrasse("jobs", "fsck").code) == (0, 1, 0)


def test_a_purge_of_all_is_refused_while_a_worker_lives(client: redis.Redis) -> None:
    client.lpush(HELD, go_job("d"))
    client.set(HEARTBEAT, "x", ex=60)
    answer = admin("purge-all", "--yes")
    assert (answer.code, HEARTBEAT in answer.err, client.llen(HELD)) == (3, True, 1)


def test_a_purge_of_all_that_is_forced_takes_also_what_workers_hold(client: redis.Redis) -> None:
    client.lpush(HELD, go_job("d"))
    client.set(HEARTBEAT, "x", ex=60)
    wrasse("jobs", "enqueue", "--id=ours", "x", "--delay=1h")
    told = admin("purge-all", "--yes", "--force").json
    assert told["keys"][HELD] == 1
    assert (client.exists(HELD, HEARTBEAT), wrasse("jobs", "list", "--json").json["jobs"]) == (0, [])


def test_an_id_can_be_put_again_after_a_purge_of_all(client: redis.Redis) -> None:
    wrasse("jobs", "enqueue", "--id=ours", "x")
    admin("purge-all", "--yes")
    assert wrasse("jobs", "enqueue", "--id=ours", "x", "--json").json["jobs"][0]["new"] is True


def test_a_bench_counts_its_own_jobs_and_leaves_those_of_others_alone(client: redis.Redis) -> None:
    client.lpush(LOW, go_job("a"))
    client.lpush(COMPLETED, go_job("bench-0"), go_job("b"))
    told = admin("bench", "--bench-count=50", "--bench-rate=0")
    assert (told.code, told.json["count"], told.json["completed"]) == (0, 50, 50)
    assert [client.lrange(key, 0, -1) for key in (LOW, COMPLETED)] == [[go_job("a")], [go_job("b"), go_job("bench-0")]]
    assert wrasse("jobs", "list", "--queue=wrasse-bench", "--json").json["jobs"] == []


def test_the_latencies_of_a_bench_are_those_of_its_jobs(client: redis.Redis) -> None:
    """A handler of 0.3 s and a slot for each job: every one of them is done after that, however long the run took."""
    told = admin("bench", "--bench-count=8", "--bench-rate=8", "--handler=measured:work", "--concurrency=8").json
    assert 0.3 <= told["p50_latency"] / 1e9 < told["duration"] / 1e9 - 0.3
    assert told["throughput_jobs_per_sec"] == pytest.approx(8 / (told["duration"] / 1e9))


def test_a_bench_that_runs_out_of_time_fails_with_the_rate_it_had(client: redis.Redis) -> None:
    answer = admin("bench", "--bench-count=500", "--bench-rate=20", "--bench-timeout=1s")
    told = answer.json
    assert answer.code == 1
    assert told["completed"] < 100
    assert told["throughput_jobs_per_sec"] == pytest.approx(told["completed"] / (told["duration"] / 1e9))


def test_an_unknown_admin_command_lists_the_known_ones(client: redis.Redis) -> None:
    answer = admin("flush")
    assert (answer.code, "stats, peek, purge-dlq, purge-all, bench, stats-keys" in answer.err) == (2, True)


def test_an_admin_command_without_the_role_is_refused(client: redis.Redis) -> None:
    assert wrasse("run", "--role=worker", "--admin-cmd=stats").code == 2


def test_admin_commands_need_redis_and_say_what_to_use_instead(place: Path) -> None:
    answer = admin("stats")
    assert (answer.code, "wrasse jobs stats" in answer.err) == (2, True)


def test_dead_letters_of_others_are_listed_shown_requeued_and_purged(client: redis.Redis) -> None:
    client.lpush(DEAD, go_job("one", retries=3), go_job("two", retries=3), b"no job")
    listed = wrasse("jobs", "dead", "--json").json["jobs"]
    assert {job["reason"] for job in listed} == {"failed", "invalid_payload"}
    assert wrasse("jobs", "show", "one", "--json").json["state"] == "dead"
    assert wrasse("jobs", "requeue", "one", "--json").json["changed"] == ["one"]
    assert [json.loads(raw)["retries"] for raw in client.lrange(LOW, 0, -1)] == [0]
    assert wrasse("jobs", "purge", "dead", "--dry-run", "--json").json["count"] == 2
    assert wrasse("jobs", "purge", "dead", "--yes", "--json").json["count"] == 2
    assert client.exists(DEAD) == 0


def test_a_waiting_job_of_another_program_is_peeked_at_and_cancelled(client: redis.Redis) -> None:
    client.lpush(LOW, go_job("one"), go_job("two"))
    assert [job["id"] for job in wrasse("jobs", "peek", "--json").json["jobs"]] == ["one", "two"]
    assert wrasse("jobs", "cancel", "one", "--json").json["changed"] == ["one"]
    (queue,) = [each for each in wrasse("jobs", "stats", "--json").json["queues"] if each["queue"] == LOW]
    assert (queue["ready"], queue["dead"]) == (1, 1)


def test_a_replay_tries_a_few_first_and_is_told_by_filter(client: redis.Redis) -> None:
    client.lpush(DEAD, *(go_job(f"j{n}") for n in range(30)))
    assert wrasse("jobs", "replay", "--dry-run", "--reason=failed", "--json").json["count"] == 30
    stopped = wrasse("jobs", "replay", "--canary=3", "--watch=200ms", "--yes", "--json")
    assert (stopped.code, client.llen(LOW), client.llen(DEAD)) == (3, 3, 27)


def test_a_requeue_that_is_killed_leaves_every_job_in_one_place_and_is_finished_by_the_next(
    client: redis.Redis, place: Path
) -> None:
    client.lpush(DEAD, *(go_job(f"j{n}", retries=3) for n in range(2_000)))
    command = [sys.executable, "-m", "wrasse", "jobs", "requeue", "--all"]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL) as requeue:
        until(lambda: client.llen(LOW) > 0, "the first are requeued")
        requeue.kill()
    ids = [json.loads(raw)["id"] for key in (LOW, DEAD) for raw in client.lrange(key, 0, -1)]
    assert sorted(ids) == sorted(f"j{n}" for n in range(2_000))
    assert wrasse("jobs", "requeue", "--all").code == 0
    assert {json.loads(raw)["retries"] for raw in client.lrange(LOW, 0, -1)} == {0}
    assert (client.llen(LOW), client.exists(DEAD), wrasse("jobs", "fsck").code) == (2_000, 0, 0)


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.full)])
def test_dead_letters_are_paged_by_a_stable_cursor_in_bounded_memory(client: redis.Redis, count: int) -> None:
    for start in range(0, count, 5_000):
        client.lpush(DEAD, *(go_job(f"j{n:06}") for n in range(start, start + 5_000)))
    wrasse("jobs", "stats")  # the first read indexes them
    ids, after = [], []
    tracemalloc.start()
    while True:
        page = wrasse("jobs", "dead", "--limit=1000", "--json", *after).json
        ids += [job["id"] for job in page["jobs"]]
        if len(ids) == 2_000:
            client.lpush(DEAD, go_job("late"))  # newer than all that was shown, so that it is not shown
        if page["next"] is None:
            break
        after = [f"--after={page['next']}"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sorted(ids) == [f"j{n:06}" for n in range(count)]
    assert peak < 100 * count + (40 << 20), "a page and the ids of this test, however many there are"


def test_a_check_of_redis_finds_damage_and_a_repair_mends_it(client: redis.Redis) -> None:
    wrasse("jobs", "enqueue", "--id=ours", "x")
    client.delete(LOW)
    found = wrasse("jobs", "fsck", "--json")
    assert (found.code, [(each["kind"], each["names"]) for each in found.json["inconsistencies"]]) == (
        1,
        [("id_left_over", ["ours"])],
    )
    text = wrasse("jobs", "fsck")
    assert "nothing was changed; repair it with: wrasse jobs fsck --repair" in text.out
    assert [wrasse("jobs", "fsck", *args).code for args in (["--repair"], [])] == [0, 0]


def test_a_backend_with_one_record_a_job_has_nothing_to_check_and_says_so(place: Path) -> None:
    (place / "wrasse.yaml").write_text("backends: {jobs: 'file:jobs'}")
    wrasse("jobs", "enqueue", "--kind=a", "{}")
    answer = wrasse("jobs", "fsck", "--json")
    assert (answer.code, answer.json["checked"]) == (0, False)
    assert "nothing to check" in answer.json["why"]
