"""Tasks: what their records and streams say, and what the sweep makes of those that are stuck."""

from __future__ import annotations

from datetime import timedelta

import pytest

from faults import CRASH, LOST_REQUEST, Crashed, Network, Script
from object_faults import FaultyObjects
from stream_faults import FaultyStreams
from unit.jobs.stream_tasks.scene import MAIL, RETRIES, STEP, TaskWorld
from wrasse.clock import to_micros
from wrasse.errors import TooLarge, UnknownName, UsageError
from wrasse.jobs.stream_tasks.fields import TASKS, progress_of, queue_of
from wrasse.jobs.stream_tasks.queue import TaskPorts, TaskQueue
from wrasse.ports.groups import StartAt
from wrasse.ports.jobs import (
    PAYLOAD_BYTES_MAX,
    Budget,
    Cancel,
    Complete,
    Delete,
    Job,
    JobGroup,
    JobState,
    Progress,
    Rate,
    Reason,
    Requeue,
)
from wrasse.ports.objects import ObjectDelete
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import START
from wrasse.streams.envelope import decode

LATER = STEP + timedelta(seconds=1)
MAX = 128 << 10


@pytest.fixture
def world() -> TaskWorld:
    return TaskWorld()


async def held(world: TaskWorld, id: str = "task_1") -> object:
    """A task that a worker has claimed until one step from now."""
    await world.client.enqueue(Job(id, payload=b'{"to":"a@b"}', headers={"job_id": "job_9", "org_id": "org_3"}))
    (claimed,) = await world.client.claim(heartbeat_timeout=STEP)
    return claimed.claim


# What is written


async def test_a_waiting_task_has_the_fields_and_the_event_of_the_design_document(world: TaskWorld) -> None:
    now = str(to_micros(world.clock.now()) // 1_000)

    await world.client.enqueue(Job("task_1", payload=b'{"to":"a@b"}', headers={"job_id": "job_9", "org_id": "org_3"}))

    fields = await world.fields("task_1")
    assert {
        "state": "pending", "task_type": MAIL, "task_id": "task_1", "job_id": "job_9", "org_id": "org_3",
        "created_at": now, "updated_at": now, "retry_count": "0", "max_retries": str(RETRIES),
    }.items() <= fields.items()  # fmt: skip
    (event,) = await world.queued()
    assert event == {
        "task_id": "task_1", "job_id": "job_9", "org_id": "org_3", "task_type": MAIL, "params": {"to": "a@b"},
        "retry_count": 0, "key": f"gbe:state:tasks:{MAIL}:task_1", "source": "wrasse", "id": "task_1:0",
    }  # fmt: skip


async def test_a_task_is_claimed_then_runs_and_every_sign_of_life_moves_its_deadline(world: TaskWorld) -> None:
    hold = await held(world)
    claimed = await world.fields("task_1")
    world.clock.advance(timedelta(seconds=10))

    await world.jobs.heartbeat(
        world.client.worker, [hold], heartbeat_timeout=STEP, progress={"task_1": Progress(0.5, "half")}
    )

    running = await world.fields("task_1")
    moved = int(running["timeout_at"]) - int(claimed["timeout_at"])
    assert (claimed["state"], claimed["worker"], running["state"], moved) == ("claimed", "w1", "running", 10_000)
    assert running["current_step"] == "half"
    (event,) = await world.said(progress_of(MAIL))
    assert (event["task_id"], event["current_step"], event["fraction"]) == ("task_1", "half", 0.5)


async def test_a_finished_task_is_told_once(world: TaskWorld) -> None:
    hold = await held(world)

    await world.jobs.settle([Complete(hold, result=b"42")], request="s")
    await world.jobs.settle([Complete(hold, result=b"42")], request="s")

    (event,) = await world.ended()
    assert (event["task_id"], event["job_id"], (await world.fields("task_1"))["state"]) == (
        "task_1",
        "job_9",
        "completed",
    )


async def test_a_cancelled_task_is_told_as_such(world: TaskWorld) -> None:
    await held(world)

    await world.client.move(Cancel("task_1"))

    (event,) = await world.ended()
    assert (event["state"], (await world.fields("task_1"))["state"]) == ("cancelled", "cancelled")


async def test_a_failed_attempt_is_told_of_when_its_delay_is_over(world: TaskWorld) -> None:
    hold = await held(world)
    await world.client.settle(Requeue(hold, Budget.FAILURES, Reason.FAILED, delay=STEP))
    early = len(await world.queued())

    world.clock.advance(LATER)
    await world.swept()

    first, again = await world.queued()
    assert (early, first["retry_count"], again["retry_count"], again["reason"]) == (1, 0, 1, "retry")


async def test_fields_that_are_not_ours_stay(world: TaskWorld) -> None:
    now = str(to_micros(world.clock.now()) // 1_000)
    await world.write("task_1", {"state": "pending", "updated_at": now, "depends_on": "task_0", "colour": "red"})
    await world.jobs.strays.scan(None, 100, heartbeat_timeout=STEP, dry=False)

    await world.client.complete(await world.client.claim_one())

    fields = await world.fields("task_1")
    assert (fields["state"], fields["depends_on"], fields["colour"]) == ("completed", "task_0", "red")


# Stuck tasks


async def test_a_stuck_task_waits_again_with_one_retry_more_and_one_event(world: TaskWorld) -> None:
    await held(world)
    world.clock.advance(LATER)

    done = [await world.swept(), await world.swept()]

    fields, events = await world.fields("task_1"), await world.queued()
    assert (done, fields["state"], fields["retry_count"]) == ([["requeue"], []], "pending", "1")
    assert [each["retry_count"] for each in events] == [0, 1]
    assert (events[1]["source"], events[1]["reason"], events[1]["previous_worker"]) == ("watcher", "stuck", "w1")
    assert [(each["retried"], each["failed"]) for each in await world.reports()] == [(1, 0)]


async def test_events_of_tasks_that_are_rescued_together_have_ids_of_their_own(world: TaskWorld) -> None:
    for id in ("task_1", "task_2"):
        await held(world, id)
    world.clock.advance(LATER)

    await world.swept()

    entries = (await world.memory.streams.read(queue_of(MAIL), START, 100)).items
    assert len({decode(entry.body).message_id for entry in entries}) == len(entries) == 4


async def test_a_task_whose_budget_is_spent_fails_with_one_terminal_and_one_error_event(world: TaskWorld) -> None:
    await world.client.enqueue("task_1")
    runs = 0
    for _ in range(RETRIES + 3):
        runs += len(await world.client.claim(heartbeat_timeout=STEP))
        world.clock.advance(LATER)
        await world.swept()

    (ended,), (error,) = await world.ended(), await world.errors()
    fields = await world.fields("task_1")
    assert (runs, fields["state"], fields["retry_count"]) == (1 + RETRIES, "failed", str(RETRIES))
    assert (ended["error"], ended["retry_count"], ended["max_retries"]) == ("retry budget exhausted", RETRIES, RETRIES)
    assert error == {
        "key": f"gbe:state:tasks:{MAIL}:task_1", "reason": "retry budget exhausted", "source": "watcher",
    }  # fmt: skip
    assert "failed_at" in fields


async def test_failures_and_rescues_spend_one_budget(world: TaskWorld) -> None:
    hold = await held(world)
    await world.client.fail(hold)
    (again,) = await world.client.claim(heartbeat_timeout=STEP)
    world.clock.advance(LATER)
    await world.swept()
    (last,) = await world.client.claim(heartbeat_timeout=STEP)

    assert (again.failures, last.failures) == (1, 2)


async def test_the_records_own_budget_counts_before_the_types(world: TaskWorld) -> None:
    past = str(to_micros(world.clock.now()) // 1_000 - 1)
    stuck = {"state": "running", "updated_at": past, "timeout_at": past, "retry_count": "5"}
    await world.write("task_1", {**stuck, "max_retries": "6"}, due_at=world.clock.now())
    await world.write("task_2", stuck, due_at=world.clock.now())

    assert sorted(await world.swept()) == ["dead_letter", "requeue"]
    assert (await world.fields("task_1"))["retry_count"] == "6"


async def test_a_task_that_finished_while_it_was_judged_stays_finished(world: TaskWorld) -> None:
    hold = await held(world)
    world.clock.advance(LATER)
    sweep = world.sweep
    page = await sweep.find(None, 10)
    await world.client.complete(hold)

    outcomes = await sweep.apply([sweep.decide(info, page.at) for info in page])

    assert (list(outcomes), len(await world.queued())) == ([Outcome.CONFLICT], 1)


async def test_a_backlog_of_ten_timeouts_is_neither_told_again_nor_failed(world: TaskWorld) -> None:
    await world.client.enqueue(*(f"task_{n}" for n in range(50)))
    claim = await world.client.claim_one()
    for _ in range(10):
        world.clock.advance(STEP)
        await world.client.heartbeat(claim, heartbeat_timeout=2 * STEP)
        assert await world.swept() == []

    low = await world.client.count()
    assert (len(await world.queued()), low.ready, low.dead) == (50, 49, 0)


async def test_blocked_tasks_are_never_touched(world: TaskWorld) -> None:
    old = str(to_micros(world.clock.now()) // 1_000 - 10**9)
    record = await world.write("task_1", {"state": "blocked", "updated_at": old, "timeout_at": old})

    swept = await world.swept()

    assert (swept, await world.client.claim(), await world.queued()) == ([], [], [])
    assert await world.memory.records(TASKS).get(record.key) == record


async def test_a_malformed_record_is_told_of_once_and_left_as_it_is(world: TaskWorld) -> None:
    await world.write("task_1", {"state": "running", "updated_at": "yesterday"}, due_at=world.clock.now())

    for _ in range(3):
        await world.sweep.prepare()
        assert await world.swept() == []

    (error,) = await world.errors()
    assert error["key"] == f"gbe:state:tasks:{MAIL}:task_1"
    assert "updated_at" in str(error["reason"])
    assert (await world.fields("task_1"))["state"] == "running"


# What a crash leaves


async def test_where_streams_are_apart_a_crash_before_the_event_costs_no_retry() -> None:
    world = TaskWorld(apart=True)
    await held(world)
    world.clock.advance(LATER)
    dying = TaskWorld.another(world, streams=FaultyStreams(world.memory.streams, Network(Script({0: CRASH}))))
    (stuck,) = await world.jobs.overdue(None, 1)
    with pytest.raises(Crashed):
        await dying.move([Requeue(stuck.claim, Budget.RESCUES, Reason.WORKER_DIED)])
    before = len(await world.queued())

    swept = await world.swept()

    events, fields = await world.queued(), await world.fields("task_1")
    assert (before, swept, [each["retry_count"] for each in events]) == (1, [], [0, 1])
    assert (fields["retry_count"], "outbox" in fields) == ("1", False)


async def test_a_follow_up_that_a_crash_left_unput_is_put_later(world: TaskWorld) -> None:
    hold = await held(world)
    crashing = world.another(objects=None)

    async def crash(jobs: object, request: str) -> None:
        raise Crashed

    crashing.search._enqueue = crash
    with pytest.raises(Crashed):
        await crashing.settle([Complete(hold, enqueues=(Job("next"),))], request="s")
    before = await world.client.state("next")

    await world.swept()

    assert (before, await world.client.state("task_1"), await world.client.state("next")) == (
        None,
        JobState.DONE,
        JobState.READY,
    )


async def test_a_waiting_task_whose_entry_is_gone_is_told_of_again_at_no_cost(world: TaskWorld) -> None:
    now = str(to_micros(world.clock.now()) // 1_000)
    await world.write("task_1", {"state": "pending", "updated_at": now})

    await world.swept()
    await world.swept()

    (event,) = await world.queued()
    assert (event["reason"], event["retry_count"]) == ("untold", 0)


async def test_a_waiting_task_whose_entry_was_delivered_and_not_answered_is_not_told_of_again(
    world: TaskWorld,
) -> None:
    await world.client.enqueue("task_1")
    subject, group = f"gbe.tasks.{MAIL}.queue", f"{MAIL}-workers"
    await world.memory.groups.join(subject, group, StartAt(first=True))
    await world.memory.groups.deliver([subject], group, "dying", 1, ack_timeout=STEP)
    world.clock.advance(LATER)

    await world.swept()

    assert len(await world.queued()) == 1


async def test_a_dry_look_changes_nothing(world: TaskWorld) -> None:
    now = str(to_micros(world.clock.now()) // 1_000)
    record = await world.write("task_1", {"state": "pending", "updated_at": now})

    found = await world.jobs.strays.scan(None, 100, heartbeat_timeout=STEP, dry=True)

    assert (found.seen, found.adopted, await world.queued()) == (1, 0, [])
    assert await world.memory.records(TASKS).get(record.key) == record


# Large parameters, and what tasks cannot have


@pytest.mark.parametrize(
    ("there", "why"), [(b"", "is gone"), (bytes(PAYLOAD_BYTES_MAX + 1), f"has more than {PAYLOAD_BYTES_MAX} bytes")]
)
async def test_a_task_whose_parameters_cannot_be_read_is_dead_and_its_neighbours_run(
    world: TaskWorld, there: bytes, why: str
) -> None:
    await world.client.enqueue(*(Job(f"task_{n}", payload=b"p" * (MAX + 1)) for n in range(3)))
    ref = (await world.fields("task_1"))["params_ref"]
    head = await world.memory.objects.head(ref)
    assert head is not None
    await world.memory.objects.delete([ObjectDelete(ref, head.info.version)])
    if there:
        await world.memory.objects.create(ref, there)

    answer = await world.jobs.claim([MAIL], 10, worker="w1", heartbeat_timeout=STEP, request="r1")

    dead = await world.client.record("task_1")
    assert sorted(each.job.id for each in answer.jobs) == ["task_0", "task_2"]
    assert [each.id for each in answer.rejected] == ["task_1"]
    assert (dead.info.state, dead.info.reason, why in dead.info.error) == (JobState.DEAD, "invalid_payload", True)


async def test_large_parameters_and_results_are_objects_that_go_with_their_task(world: TaskWorld) -> None:
    await world.client.enqueue(Job("task_1", payload=b"p" * (MAX + 1)))
    (claimed,) = await world.client.claim()
    await world.client.settle(Complete(claimed.claim, result=b"r" * (MAX + 1)))
    fields, record = await world.fields("task_1"), await world.client.record("task_1")

    stored = [each.key for each in await world.memory.objects.page("", None, 10)]
    await world.jobs.delete([Delete(record.info.claim, JobState.DONE)])

    assert sorted(stored) == sorted([fields["params_ref"], fields["result_ref"]])
    assert (len(claimed.job.payload), len(record.result or b"")) == (MAX + 1, MAX + 1)
    assert len(await world.memory.objects.page("", None, 10)) == 0


async def test_without_objects_large_parameters_are_refused(world: TaskWorld) -> None:
    ports = world.jobs.ports
    bare = TaskQueue(TaskPorts(ports.records, ports.streams, ports.groups, ports.codec, ports.clock), world.types)

    with pytest.raises(TooLarge, match="bytes of params"):
        await bare.enqueue([Job("task_1", payload=b"p" * (MAX + 1))], request="r")


@pytest.mark.parametrize("id", ["", "a b", "a:b", "é", "x" * 65])
async def test_an_id_that_is_no_task_id_is_refused(world: TaskWorld, id: str) -> None:
    with pytest.raises(UsageError):
        await world.client.enqueue(Job(id))


async def test_what_a_task_cannot_have_is_refused(world: TaskWorld) -> None:
    group = JobGroup("g", 1, Job("c"))
    with pytest.raises(UsageError, match="group"):
        await world.jobs.enqueue([], request="r", groups=[group])
    with pytest.raises(UsageError, match="unique"):
        await world.client.enqueue(Job("task_1", unique="u"))
    with pytest.raises(UsageError, match="rate"):
        await world.jobs.claim([MAIL], 1, worker="w", heartbeat_timeout=STEP, request="r", rates=[Rate(MAIL, 1, STEP)])
    with pytest.raises(UnknownName):
        await world.client.enqueue(Job("task_1", queue="unheard-of"))


async def test_a_batch_is_served_in_its_order(world: TaskWorld) -> None:
    names = [f"task_{n}" for n in range(100)]
    await world.client.enqueue(*names)

    assert [claimed.job.id for claimed in await world.client.claim(limit=100)] == names


async def test_tasks_that_finished_long_ago_are_found_by_the_index(world: TaskWorld) -> None:
    await world.client.complete(await world.client.claimed("task_1"))
    early = await world.jobs.aged(JobState.DONE, None, 10)
    world.clock.advance(timedelta(days=1, seconds=1))

    late = await world.jobs.aged(JobState.DONE, None, 10)

    assert (len(early), [info.id for info in late], len(await world.jobs.overdue(None, 10))) == (0, ["task_1"], 0)


async def test_a_task_is_shown_while_the_store_of_its_parameters_is_away(world: TaskWorld) -> None:
    await world.jobs.enqueue([Job("large", queue=MAIL, payload=b"p" * (MAX + 1))], request="put")
    away = FaultyObjects(world.memory.objects, Network(Script({0: LOST_REQUEST}, only="read")))
    shown = await world.another(objects=away).get("large")
    assert shown is not None
    assert (shown.info.state, shown.job.payload) == (JobState.READY, b"")
    assert "its parameters or result cannot be read now: " in shown.info.error
