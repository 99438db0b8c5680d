"""The record of a task on the wire: what was written is read, and what another program wrote is understood or told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from wrasse.errors import StoreBroken, UsageError
from wrasse.jobs.stream_tasks.fields import FAR, check_task_type, decode_fields, encode_fields, id_in, read_flat
from wrasse.ports.jobs import Budget, Cancel, Complete, DeadLetterJob, Job, JobState, Progress, Reason, Requeue
from wrasse.ports.rules import job_transitions as rules
from wrasse.ports.rules.job_transitions import StoredJob

NOW = datetime(2026, 3, 1, tzinfo=UTC)
STEP = timedelta(seconds=30)
MS = str(int(NOW.timestamp() * 1_000))

jobs = st.builds(
    Job,
    id=st.just("task_1"),
    kind=st.sampled_from(["", "mail"]),
    queue=st.just("mail"),
    priority=st.sampled_from(["", "low"]),
    payload=st.binary(max_size=20),
    headers=st.dictionaries(st.sampled_from(["job_id", "org_id", "x"]), st.text(min_size=1, max_size=5), max_size=2),
    timeout=st.sampled_from([None, STEP]),
    keep=st.sampled_from([timedelta(0), STEP]),
    lasting=st.booleans(),
    delay=st.sampled_from([timedelta(0), STEP]),
)
ends = st.sampled_from(["waits", "runs", "beats", "done", "fails", "dies", "cancelled"])


def lived(job: Job, end: str, result: bytes | None) -> StoredJob:
    """A task that has come to this."""
    record = rules.added(job, NOW, rank=rules.back(NOW), request="p", retries_max=3)
    record = replace(record, job=replace(record.job, delay=timedelta(0)))  # only for enqueue
    at = NOW + STEP
    held = rules.claim(record, at, worker="w", nonce="n", heartbeat_timeout=STEP)
    assert held is not None
    claim, rank = held.info.claim, rules.back(at)
    lives = {
        "waits": record,
        "runs": held,
        "beats": rules.heartbeat(held, claim, at + STEP, heartbeat_timeout=STEP, progress=Progress(0.5, "half")),
        "done": rules.settle(held, Complete(claim, result, (Job("next"),)), at, request="s", rank=rank),
        "fails": rules.settle(
            held, Requeue(claim, Budget.FAILURES, Reason.FAILED, "e", delay=STEP), at, request="s", rank=rank
        ),
        "dies": rules.settle(
            held, DeadLetterJob(claim, Reason.TIMEOUT, "e", Budget.FAILURES), at, request="s", rank=rank
        ),
        "cancelled": rules.move(held, Cancel("task_1", "no"), at, rank=rank),
    }
    found = lives[end]
    assert found is not None
    return found


@given(job=jobs, end=ends, result=st.sampled_from([None, b"", b"\x00r"]))
def test_what_was_written_is_read(job: Job, end: str, result: bytes | None) -> None:
    record = lived(job, end, result)
    at = record.info.heartbeat_at if record.info.state is JobState.RUNNING else NOW
    assert at is not None

    fields = encode_fields(record, {}, at)

    assert all(isinstance(text, str) and text for text in fields.values())
    assert decode_fields("mail", "task_1", fields) == record


@pytest.mark.parametrize(
    ("wire_state", "state"),
    [("pending", JobState.READY), ("claimed", JobState.RUNNING), ("running", JobState.RUNNING),
     ("completed", JobState.DONE), ("failed", JobState.DEAD), ("cancelled", JobState.DEAD)],
)  # fmt: skip
def test_a_record_of_another_program_is_a_task(wire_state: str, state: JobState) -> None:
    fields = {"state": wire_state, "updated_at": MS, "worker": "rust", "retry_count": "2"}

    record = decode_fields("mail", "task_1", fields)

    assert (record.info.state, record.info.rescues, record.info.created_at) == (state, 2, NOW)


def test_a_blocked_task_waits_for_no_moment() -> None:
    record = decode_fields("mail", "task_1", {"state": "blocked", "updated_at": MS})

    assert (record.info.not_before, encode_fields(record, {"state": "blocked"}, NOW)["state"]) == (FAR, "blocked")


def test_seconds_are_understood_too() -> None:
    record = decode_fields("mail", "task_1", {"state": "running", "updated_at": MS[:-3], "timeout_at": MS})

    assert (record.info.heartbeat_at, record.info.deadline) == (NOW, NOW)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"state": "running"},
        {"state": "running", "updated_at": "yesterday"},
        {"state": "asleep", "updated_at": MS},
        {"state": "running", "updated_at": MS, "timeout_at": "-1"},
        {"state": "running", "updated_at": MS, "retry_count": "two"},
        {"state": "pending", "updated_at": MS, "payload_b64": "?"},
        {"state": "pending", "updated_at": MS, "history": "{"},
        {"state": "pending", "updated_at": "9" * 30},
    ],
)
def test_a_malformed_record_is_told_as_such(fields: dict[str, str]) -> None:
    with pytest.raises(StoreBroken, match="task_1"):
        decode_fields("mail", "task_1", fields)


def test_bytes_that_are_no_flat_object_are_told_as_such() -> None:
    with pytest.raises(StoreBroken):
        read_flat(b'{"state": 1}')


@pytest.mark.parametrize("name", ["", "-mail", "mail-", "Mail", "a b", "a.b", "x" * 49])
def test_a_name_that_is_no_type_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_task_type(name)


def test_both_spellings_of_a_record_name_its_task() -> None:
    names = ("gbe:state:tasks:mail:task_1", "gbe.state.tasks.mail.task_1", "gbe:state:tasks:other:task_1")

    assert [id_in(name, "mail") for name in names] == ["task_1", "task_1", ""]
