"""Every decoder of bytes from outside, with seeds: each answers a value or one of its own errors, for any bytes.

Used by hypothesis (tests/unit/test_decoders.py) and by the coverage-guided fuzzer (tests/fuzz_decoders.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from backends.redis_peer import GARBAGE
from wrasse.archives.lines import entry_of
from wrasse.backends.bucket import envelope as record_envelope
from wrasse.backends.redis import job_json
from wrasse.clock import ManualClock
from wrasse.errors import WrasseError
from wrasse.jobs.job_record import StoredJob
from wrasse.jobs.task_fields import decode_fields, encode_fields, read_flat
from wrasse.leases import lease, meta
from wrasse.ports.records import Record
from wrasse.streams import envelope


@dataclass(frozen=True, slots=True)
class Decoder:
    """`decode` may raise only WrasseError, or ValueError where that is its documented answer."""

    name: str
    decode: Callable[[bytes], object]
    seeds: tuple[bytes, ...]


def _redis_job(raw: bytes) -> object:
    wire = job_json.decode(raw)
    job = None if wire is None else job_json.job_of(wire, "low")
    assert (job is None) == bool(job_json.flaw(raw)), "a reason is given for what is no job, and only for that"
    if wire is not None:
        job_json.attempts_of(wire)
        job_json.seconds(wire.keep)
        assert job_json.decode(job_json.changed(raw, job_json.Change(retries=1))) is not None, "a retry stays a job"
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


_ENVELOPE = b'{"message_id":"01JMQ7Y8ZK3V5W7X9Y1Z3A5B7C","subject":"s","timestamp":1739539200123,"payload":"aGk="}'
_META = meta.encode(meta.Meta(7, meta.Grant("l", "o", 7, ManualClock().now(), "t")))
_JOB = b'{"id":"a","filepath":"/x","filesize":1,"priority":"low","retries":0,"creation_time":"2026-01-02T03:04:05Z"}'
DECODERS = (
    Decoder("Redis job", _redis_job, (_JOB, *(raw for raw, _ in GARBAGE if len(raw) < 10_000))),
    Decoder("task record", _task, (b'{"state":"running","updated_at":"1739539200123","retry_count":"1"}',)),
    Decoder("stream envelope", envelope.decode, (_ENVELOPE, _ENVELOPE.replace(b'"aGk="', b'{"a":[1]}'))),
    Decoder("lease meta", _record(meta.decode), (_META,)),
    Decoder("lease", _record(lease.decode), (b'{"owner":"o","token":1,"until":1739539200123000,"grant":"g"}',)),
    Decoder("record file", _unpacked, (record_envelope.pack(record_envelope.listed(b"\xff")),)),
    Decoder("archive line", lambda line: entry_of(line, "s"), (
        _ENVELOPE[:-1] + b',"stream_id":"5-1"}', b'{"stream_id":"5-1","subject":"s","raw":"","text":{"a":"b"}}',
    )),
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
