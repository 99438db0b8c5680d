"""Every decoder of bytes from outside, with seeds: each answers a value or one of its own errors, for any bytes.

Used by hypothesis (tests/unit/test_decoders.py) and by the coverage-guided fuzzer (tests/fuzz_decoders.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import msgspec

import decoders_of_servers
from backends.redis.peer import GARBAGE
from wrasse.archives.codec import entry_of
from wrasse.archives.cursor import decode_cursor
from wrasse.backends import record_files as record_envelope
from wrasse.backends.nats import groups, message_codec as nats_stored, records, stream_map
from wrasse.backends.record_files import DueBuckets
from wrasse.backends.redis.jobs import changes, job_json, states
from wrasse.backends.redis.jobs.states import claimed_info, finished_info
from wrasse.clock import ManualClock
from wrasse.engine import record_journal, turn as sweep_state
from wrasse.errors import WrasseError
from wrasse.jobs.record_queue.store import Recorded, decode_recorded, encode_recorded
from wrasse.jobs.scheduler import read_mark
from wrasse.jobs.stream_tasks.fields import decode_fields, encode_fields, read_flat
from wrasse.jobs.worker.breakers import ShutQueue, read_shut
from wrasse.leases import lease
from wrasse.leases.transactions import states as transaction_states
from wrasse.orphans.scan import read_approval
from wrasse.ports.jobs import Job, JobState
from wrasse.ports.journal import Intent, Line
from wrasse.ports.records import Record
from wrasse.ports.rules.job_transitions import StoredJob, added, claim
from wrasse.streams import envelope


@dataclass(frozen=True, slots=True)
class Decoder:
    """`decode` may raise only WrasseError, or ValueError where that is its documented answer."""

    name: str
    decode: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    cost: int = 1  # how many times as long as others it takes: it is fuzzed in fewer runs


def _redis_job(raw: bytes) -> object:
    wire = job_json.decode(raw)
    job = None if wire is None else job_json.job_of(wire, "low")
    assert (job is None) == bool(job_json.flaw(raw)), "a reason is given for what is no job, and only for that"
    if wire is not None:
        job_json.attempts_of(wire)
        job_json.seconds(wire.keep)
        assert job_json.decode(job_json.changed(raw, job_json.JobChange(retries=1))) is not None, "a retry stays a job"
    return job


def _task(data: bytes) -> object:
    fields = read_flat(data)
    found: StoredJob = decode_fields("mail", "task_1", fields)
    return encode_fields(found, fields, ManualClock().now())


def _record(decode: Callable[[Record], object]) -> Callable[[bytes], object]:
    return lambda data: decode(Record("key", data, "1", None))


def _unpacked(data: bytes) -> object:
    try:
        return record_envelope.unpack(data)
    except ValueError:
        return None


def _bucket_job(data: bytes) -> object:
    recorded = decode_recorded("a", data)
    found = recorded.stored.at(_NOW)
    claim(found, _NOW, worker="w", nonce="n", heartbeat_timeout=timedelta(seconds=1))
    return found.shown


def _hold(data: bytes) -> object:
    return claimed_info(data[:12], 0, states.read_claim(data))


def _finished(data: bytes) -> object:
    text = states.read_finished(data)
    job_json.read_attempts(job_json.read_history(text.history))
    return finished_info(data[:12], text)


def _worker(data: bytes) -> object:
    changes.read_progress(data)
    return changes.read_worker(data[:5], data)


def _due_buckets(data: bytes) -> object:
    due_buckets = DueBuckets(timedelta(hours=1))
    try:
        return [due_buckets.is_over(each, _NOW) for each in due_buckets.parse(data) or ()]
    except ValueError:
        return None


def _nats_record(data: bytes) -> object:
    try:
        return records.unpack(data)
    except ValueError:
        return None


def _nats_message(header: bytes) -> object:
    found = nats_stored.stored(1, header, b"")
    nats_stored.name_of(header)
    return nats_stored.entry("s", found, found.ms)


def _nats_note(data: bytes) -> object:
    return stream_map.SubjectNote.read(nats_stored.StoredMessage(1, 0, 0, 0, b"", data))


def _journal(data: bytes) -> object:
    lines = record_journal.read_lines(Record("key", data, "1", None))
    return sorted(lines, key=lambda line: line.intended_at)


_NOW = ManualClock().now()
_RUNNING = claim(
    added(Job("a", headers={"n": "1"}, not_before=_NOW), _NOW, rank=1), _NOW, worker="w", nonce="n",
    heartbeat_timeout=timedelta(seconds=1),
)  # fmt: skip
assert _RUNNING is not None, "what is ready is taken"
_TRANSACTION = transaction_states.begun(
    "key", transaction_states.Decision.PENDING, (transaction_states.Participant("n", "k", 1),), _NOW, _NOW
)
_FINISHED = states.FinishedText(
    JobState.DEAD, b"w", b"q", b"i", 5, 1, 1, 0, 0, b"failed", b"why", b"r", b'[[1,"w",1,2,"failed","e"]]', b"{}"
)
_NATS_RECORD = records.pack(
    records.KvRecord(
        b"value", "v", _NOW, record_envelope.LastWrites((("n", "v"),)), records.DueEntry("2026010101", "m")
    ),
    999,
)
_ENVELOPE = b'{"message_id":"01JMQ7Y8ZK3V5W7X9Y1Z3A5B7C","subject":"s","timestamp":1739539200123,"payload":"aGk="}'
_KEY = lease.KEYS.encode(lease.KeyRecord(7, lease.Lease("l", "o", 7, ManualClock().now(), "t")))
_JOB = b'{"id":"a","filepath":"/x","filesize":1,"priority":"low","retries":0,"creation_time":"2026-01-02T03:04:05Z"}'
DECODERS = (
    *(Decoder(*row) for row in decoders_of_servers.rows()),
    Decoder("Redis job", _redis_job, (
        _JOB, _JOB.replace(b"Z", b"z"), *(raw for raw, _ in GARBAGE if len(raw) < 10_000),
    )),
    Decoder("task record", _task, (b'{"state":"running","updated_at":"1739539200123","retry_count":"1"}',)),
    Decoder("stream envelope", envelope.decode, (_ENVELOPE, _ENVELOPE.replace(b'"aGk="', b'{"a":[1]}'))),
    Decoder("lease of a key", _record(lease.decode), (_KEY,)),
    Decoder("lease of the engine", _record(lambda record: lease.decode(record, lease.BARE)), (
        b'{"owner":"o","token":1,"until":1739539200123000,"grant":"g"}',
    )),
    Decoder("record file", _unpacked, (record_envelope.pack(record_envelope.listed(b"\xff")),)),
    Decoder("archive line", lambda line: entry_of(line, "s"), (
        _ENVELOPE[:-1] + b',"stream_id":"5-1"}', b'{"stream_id":"5-1","subject":"s","raw":"","text":{"a":"b"}}',
    )),
    Decoder("bucket job", _bucket_job, (encode_recorded(Recorded(_RUNNING, "mark")),)),
    Decoder("Redis hold", _hold, (b"5 9 0 1 1 1\nwqi{}",)),
    Decoder("Redis finished job", _finished, (b"7 0\n" + states.pack_finished(_FINISHED),)),
    Decoder("Redis worker", _worker, (b"1739539200123 1739539230123 77 4 host", b"1739539200123 0.5 half")),
    Decoder("due buckets", _due_buckets, (b'["2026010203","2026010204"]', b'["9999123123"]')),
    Decoder("NATS record", _nats_record, (_NATS_RECORD,)),
    Decoder("NATS message", _nats_message, (
        b"NATS/1.0\r\nWrasse:1739539200123 5 70 n\r\nWrasse-Field:a=%41\r\n\r\n",
        b"NATS/1.0\r\nNats-Time-Stamp: 2026-01-02T03:04:05.123456789Z\r\n\r\n",
        b"NATS/1.0\r\nNats-Time-Stamp: 2026-01-02T03:04:05\r\n\r\n",
    )),
    Decoder("NATS stream note", _nats_note, (
        b'{"entries_max":1,"bytes_max":null,"last":[1,2,3,4],"known":true,"pen":"p"}',
    )),
    Decoder("NATS ledger", lambda data: groups.floor_of([data]), (
        b'["a",1,"n",[1,[[0,1,2,7,0]]]]',
        b'["S",1,"",{"delivered":[7,9],"runs":[[3,2,7,0,1,5]]}]', b'["m",1,"n",[7,4]]',
    )),
    Decoder("transaction", _record(transaction_states.decode_transaction), (transaction_states.encode(_TRANSACTION),)),
    Decoder("decision", _record(transaction_states.decode_decision), (
        transaction_states.encode(transaction_states.Decided("key", transaction_states.Decision.COMMIT, _NOW)),
    )),
    Decoder("journal batch", _journal, (
        msgspec.json.encode((Line(Intent("i", "r", "s", "v", "x", "y"), _NOW), Line(Intent("j", *"rsvxy"), _NOW))),
    )),
    Decoder("sweep state", _record(lambda record: sweep_state.decode_state("s", record)), (
        msgspec.json.encode(sweep_state.SweepState(_NOW, "c", sweep_state.PausedBy("g", "r", _NOW), (), {"g": "{}"})),
    )),
    Decoder("archive cursor", _record(decode_cursor), (b'{"after":"5-1","passed":7,"key":"k","epoch":2}',)),
    Decoder("shut queues", _record(read_shut), (msgspec.json.encode((ShutQueue("q", "open", "w", _NOW),)),)),
    Decoder("periodic job", _record(read_mark), (
        b'{"last":"2026-01-02T03:04:05Z","job":"j","kind":"k","when":"every 1s","missed":"all"}',
    )),
    Decoder("approval of a root", read_approval, (b'{"armed":true,"due":5}',)),
)  # fmt: skip


def escaped(decoder: Decoder, data: bytes) -> Exception | None:
    """What the decoder raised, if that is not an answer of ours."""
    try:
        decoder.decode(data)
    except WrasseError:
        return None
    except Exception as error:
        return error
    return None


def odd_values() -> tuple[bytes, ...]:
    """JSON values at and beyond what can be represented, to stand in for any value."""
    edges = ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "2026-02-30")
    texts = ("", "x", "12", "-1", "\0", "9" * 400, *edges)
    numbers = (b"0", b"-1", b"1e300", b"1e400", b"-1e20", b"9" * 5_000, b"1.5", b"9223372036854775807", b"NaN")
    deep = (b"[" * 50_000 + b"]" * 50_000, b'{"a":' * 50_000, b"[" * 199 + b"]" * 199)
    other = (b"null", b"true", b"[]", b"{}", b'"\\ud800"', b'"\xed\xa0\x80"', b'"\xff"', b'{"a":1,"a":2}')
    return (*(msgspec.json.encode(text) for text in texts), *numbers, *deep, *other)
