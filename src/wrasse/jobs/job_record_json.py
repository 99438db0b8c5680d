"""The bytes of a stored job, for queues whose records nobody else reads. What was written is read, for ever: fields are
only added, each with a default."""

from __future__ import annotations

import msgspec

from wrasse.errors import StoreBroken
from wrasse.jobs.job_record import StoredJob

_decode = msgspec.json.Decoder(StoredJob).decode


def encode_job(record: StoredJob) -> bytes:
    """The bytes of a record."""
    return msgspec.json.encode(record)


def decode_job(value: bytes) -> StoredJob:
    """The record in these bytes; StoreBroken if they are none."""
    try:
        return _decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as why:
        raise StoreBroken("a record that is not a job", do="look at what else writes to these records") from why
