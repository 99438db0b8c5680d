"""Whatever an enqueue accepts is read back: by the Redis codec, as a task record, and as a record of a bucket."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import example, given, settings, strategies as st

from wrasse.backends.redis.jobs import job_json
from wrasse.bounded import DURATION_MAX, EARLIEST, LATEST
from wrasse.clock import ManualClock
from wrasse.errors import UsageError
from wrasse.jobs.record_core.claims import whole_up
from wrasse.jobs.record_core.record_names import plain
from wrasse.jobs.record_queue.store import JobRecordNames, Recorded, decode_recorded, encode_recorded, read_marker
from wrasse.jobs.stream_tasks.fields import FAR, decode_fields, encode_fields, read_flat
from wrasse.ports.jobs import Job, check_job
from wrasse.ports.rules.job_transitions import added, back

_AT = ManualClock().now()
_ZERO, _MICRO, _MS = timedelta(0), timedelta(microseconds=1), timedelta(milliseconds=1)
_ODD = (_ZERO, _MICRO, -_MICRO, DURATION_MAX, DURATION_MAX + _MICRO, -DURATION_MAX, timedelta(days=40_000))
_SPANS = st.sampled_from((*_ODD, timedelta.max, timedelta.min)) | st.timedeltas()
_ZONES = st.sampled_from((UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-14, seconds=-1)), None))
_TIMES = (
    st.sampled_from((EARLIEST, LATEST, FAR, LATEST.replace(tzinfo=timezone(timedelta(hours=-1)))))
    | st.builds(lambda at, zone: at.replace(tzinfo=zone), st.datetimes(), _ZONES)
)  # fmt: skip
_TEXTS = st.text(st.characters() | st.characters(categories=["Cs"]), max_size=8)
_NAMES = st.text(st.characters(), min_size=1, max_size=4)
_PAYLOADS = st.binary(max_size=20) | st.sampled_from(
    (b'{"filepath":"/a","filesize":1}', b'{"filepath":"","filesize":0}', b'{"filepath":"/a","filesize":-1}')
)
_JOBS = st.builds(
    Job,
    id=_NAMES,
    kind=_TEXTS,
    queue=_NAMES,
    priority=_TEXTS,
    payload=_PAYLOADS,
    headers=st.dictionaries(_TEXTS | st.sampled_from(("trace_id", "span_id", "job_id")), _TEXTS, max_size=3),
    not_before=st.none() | _TIMES,
    delay=_SPANS,
    timeout=st.none() | _SPANS,
    lasting=st.booleans(),
    keep=_SPANS,
)


def _accepted(job: Job) -> bool:
    try:
        check_job(job)
    except UsageError:
        return False
    return True


def _rounded(span: timedelta) -> timedelta:
    return -(-span // _MS) * _MS


@given(job=_JOBS, unique=_TEXTS, group=_TEXTS, window=_SPANS)
@example(job=Job("a", delay=timedelta(days=40_000)), unique="", group="", window=_ZERO)
@example(job=Job("a", not_before=LATEST), unique="", group="", window=_ZERO)
@example(job=Job("a", not_before=FAR), unique="", group="", window=_ZERO)
@example(job=Job("a", timeout=_MICRO), unique="", group="", window=_ZERO)
@settings(max_examples=400, deadline=None)
def test_a_job_that_is_accepted_is_read_back(job: Job, unique: str, group: str, window: timedelta) -> None:
    named = replace(job, unique=unique, group=group, window=window if unique else _ZERO)
    if _accepted(named):
        raw = job_json.encode(named, job_json.rfc3339(_AT), "low")
        wire = job_json.decode(raw)
        assert wire is not None, job_json.flaw(raw)
        assert job_json.job_of(wire, named.queue) == named
    if _accepted(job):
        _as_task(job)
        _as_record(job)


def _as_task(job: Job) -> None:
    job = replace(job, not_before=None if job.not_before is None else whole_up(job.not_before))
    stored = added(job, _AT, rank=back(_AT))
    fields = read_flat(msgspec.json.encode(encode_fields(stored, {}, _AT)))
    found = decode_fields(job.queue, job.id, fields)
    due = stored.info.not_before
    assert found.info == replace(stored.info, not_before=None if due is None else due.replace(
        microsecond=due.microsecond // 1_000 * 1_000
    ))  # fmt: skip
    # When it may run is in its state; durations are kept in milliseconds.
    timeout = None if job.timeout is None else _rounded(job.timeout)
    kept = replace(job, not_before=None, delay=_ZERO, timeout=timeout, keep=_rounded(job.keep))
    headers = job.headers or {}
    assert replace(found.job, headers=headers) == kept
    assert found.job.headers == job.headers
    assert encode_fields(found, fields, _AT) == fields, "written again, nothing changes"


def _as_record(job: Job) -> None:
    due = max(job.not_before or _AT, _AT + job.delay, _AT)
    recorded = Recorded(added(job, _AT, rank=back(due)), "mark")
    assert decode_recorded(plain(job.id), encode_recorded(recorded)) == recorded
    name = JobRecordNames().marker(recorded.stored, "mark")
    assert name is not None
    sign = read_marker(name, "")
    assert sign is not None
    assert (sign.key, sign.queue, sign.position) == (plain(job.id), plain(job.queue), recorded.stored.rank)


@pytest.mark.parametrize("what", ["delay", "timeout", "keep", "window"])
def test_a_duration_that_no_reader_accepts_is_refused(what: str) -> None:
    job = Job("a", unique="u")
    with pytest.raises(UsageError, match=f"the {what} of job 'a' is 40000 days"):
        check_job(replace(job, **{what: timedelta(days=40_000)}))  # type: ignore[arg-type]
    check_job(replace(job, **{what: DURATION_MAX}))  # type: ignore[arg-type]


def test_headers_are_text() -> None:
    with pytest.raises(UsageError, match="the header 'n' of job 'a' is int, not text"):
        check_job(Job("a", headers={"n": 1}))  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="lone surrogate"):
        check_job(Job("a", headers={"n": "\ud800"}))


def test_a_time_that_is_outside_of_the_calendar_in_utc_is_refused() -> None:
    with pytest.raises(UsageError, match="outside of the years"):
        check_job(Job("a", not_before=datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))))
    with pytest.raises(UsageError, match="without a time zone"):
        check_job(Job("a", not_before=datetime(2026, 1, 1)))
