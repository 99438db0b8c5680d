"""A job as JSON: the design document's eight fields first, in the seed's order and with its escapes, then ours.

Any program may write and read these bytes. A field that has its default is absent; unknown fields survive every change.
Durations are seconds, moments of `history` are milliseconds since 1970. Bytes that are not an object with a usable
`id`, or have a field with an invalid value, are not a job: `decode` returns None, `flaw` says why, and the bytes are
dead-lettered unchanged. Fields with one meaning are read in any of its spellings, see `wrasse.bounded`.

A file job is one without `payload_b64` that names a file; its payload here is `{"filepath":...,"filesize":...}`, and a
payload of exactly that form is written as a file job. `trace_id` and `span_id` are headers of the same names.

`Router` finds the queue of a job that is found outside of one. All of it is pure, except `known_queues`.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec

from wrasse import bounded
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.failure import WrongType
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.options import RedisOptions
from wrasse.bounded import UNREADABLE, clamped_ms
from wrasse.clock import EPOCH, from_micros
from wrasse.ports.jobs import ID_BYTES_MAX, NOTHING, Attempt, Job, Reason
from wrasse.ports.rules.job_transitions import setters

FIELDS = ("id", "filepath", "filesize", "priority", "retries", "creation_time", "trace_id", "span_id")
TRACE = ("trace_id", "span_id")
_Count = Annotated[int, msgspec.Meta(ge=0, le=bounded.INTEGER_MAX)]
_SIZE_MAX = (1 << 63) - 1  # of a file, the int64 of the seed
_Size = Annotated[int, msgspec.Meta(ge=0, le=_SIZE_MAX)]
_Ms = Annotated[int, msgspec.Meta(ge=bounded.MS_MIN, le=bounded.MS_MAX)]
_Seconds = Annotated[float, msgspec.Meta(ge=-bounded.DURATION_SECONDS_MAX, le=bounded.DURATION_SECONDS_MAX)]
_Timeout = Annotated[float, msgspec.Meta(ge=0, le=bounded.DURATION_SECONDS_MAX)]
History = list[tuple[_Count, str, _Ms, _Ms, str, str]]

_PLAIN = re.compile(r"[\w .,:;/@#%+=()*!?~^$|\[\]{}'`-]*", re.ASCII).fullmatch  # characters that are never escaped
_MICROSECOND = timedelta(microseconds=1)
_NO_DELAY = timedelta(0)
_new = object.__new__


class JobFields(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=False, gc=False):
    """All fields that wrasse uses. Names and order are those of the bytes."""

    id: str
    filepath: str = ""
    filesize: _Size = 0
    priority: str = ""
    retries: _Count = 0
    creation_time: datetime = EPOCH
    trace_id: str = ""
    span_id: str = ""
    kind: str = ""
    payload_b64: str | None = None
    headers: dict[str, str] | None = None
    not_before: datetime | None = None
    delay: _Seconds = 0
    timeout: _Timeout | None = None
    rescues: _Count = 0
    interruptions: _Count = 0
    attempts: _Count = 0
    origin_queue: str = ""
    unique: str = ""
    window: _Seconds = 0
    keep: _Seconds = 0
    group: str = ""
    counted: bool = False
    lasting: bool = False
    token: _Count = 0
    nonce: str = ""
    history: History | None = None
    error: str = ""
    reason: str = ""
    failed_at: datetime | None = None


class _Loose(JobFields, forbid_unknown_fields=False):
    """The same with unknown fields allowed."""


class _FilePayload(msgspec.Struct, forbid_unknown_fields=True):
    filepath: str
    filesize: int


_strict = msgspec.json.Decoder(JobFields).decode
_loose = msgspec.json.Decoder(_Loose).decode
_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_file = msgspec.json.Decoder(_FilePayload).decode
_json = msgspec.json.Encoder().encode


def encode(job: Job, created: str, queue: str) -> bytes:
    """The bytes of a new job. `created` is the time in the format of `rfc3339`; `queue` the one of its priority."""
    payload, headers = job.payload, job.headers
    text = f'{{"id":{_text(job.id)},'
    if payload.startswith(b'{"filepath":') and (file := _as_file(payload)) is not None:
        text += f'"filepath":{_text(file.filepath)},"filesize":{file.filesize},'
        payload = b""
    else:
        text += '"filepath":"","filesize":0,'
    text += f'"priority":{_text(job.priority)},"retries":0,"creation_time":"{created}",'
    if headers:
        trace, span, headers = _trace(headers)
        text += f'"trace_id":{_text(trace)},"span_id":{_text(span)}'
    else:
        text += '"trace_id":"","span_id":""'
    if job.kind:
        text += f',"kind":{_text(job.kind)}'
    if headers:
        text += f',"headers":{_escaped(_json(headers))}'
    if job.queue != queue:
        text += f',"origin_queue":{_text(job.queue)}'
    if job.lasting or job.timeout is not None or job.delay or job.not_before or job.unique or job.keep or job.group:
        text += _rare(job)
    if not payload:
        return text.encode() + b"}"
    return b'%b,"payload_b64":"%b"}' % (text.encode(), b2a_base64(payload, newline=False))


def decode(raw: bytes) -> JobFields | None:
    """The job in these bytes, or None if they are not a job; its instants are in UTC."""
    try:
        try:
            wire = _strict(raw)
        except UNREADABLE:
            wire = _foreign(raw)
        if not 1 <= len(wire.id) <= ID_BYTES_MAX:
            return None
        if wire.creation_time.tzinfo is not UTC or wire.not_before is not None or wire.failed_at is not None:
            _to_utc(wire)
    except UNREADABLE:
        return None
    return wire


def flaw(raw: bytes) -> str:
    """Why these bytes are not a job that can run, naming the field; empty for one that can."""
    try:
        wire = _liberal(raw)
        if not 1 <= len(wire.id) <= ID_BYTES_MAX:
            return f"field id: it has {len(wire.id)} characters, not 1 to {ID_BYTES_MAX}"
        _to_utc(wire)
    except UNREADABLE as error:
        return bounded.why(error)
    return "" if payload_of(wire) is not None else "field payload_b64: it is not base64"


def payload_of(wire: JobFields) -> bytes | None:
    """The payload as it was enqueued; None if it cannot be read."""
    text = wire.payload_b64
    if text is None:
        return _json(_FilePayload(wire.filepath, wire.filesize)) if wire.filepath or wire.filesize else b""
    try:
        return bounded.from_base64(text)
    except ValueError:
        return None


def traced(wire: JobFields) -> Mapping[str, str]:
    """The headers with the trace."""
    trace = {name: text for name, text in zip(TRACE, (wire.trace_id, wire.span_id), strict=True) if text}
    return {**(wire.headers or NOTHING), **trace}


def seconds(number: float) -> timedelta:
    """A duration in the bytes."""
    return timedelta(seconds=number) if number else _NO_DELAY


def job_of(wire: JobFields, queue: str) -> Job | None:
    """The job that was enqueued, as it is in this queue; None if its payload cannot be read."""
    payload = payload_of(wire)
    return None if payload is None else _made(wire, queue, payload)


def _made(wire: JobFields, queue: str, payload: bytes) -> Job:
    job = _new(Job)
    _id(job, wire.id)
    _kind(job, wire.kind)
    _queue(job, queue)
    _priority(job, wire.priority)
    _payload(job, payload)
    _headers(job, traced(wire) if wire.trace_id or wire.span_id else wire.headers or NOTHING)
    _timeout(job, None if wire.timeout is None else seconds(wire.timeout))
    _lasting(job, wire.lasting)
    if wire.delay or wire.not_before or wire.unique or wire.keep or wire.group or wire.window:
        _not_before(job, None if wire.not_before is None else wire.not_before)
        _delay(job, seconds(wire.delay))
        _unique(job, wire.unique)
        _window(job, seconds(wire.window))
        _keep(job, seconds(wire.keep))
        _group(job, wire.group)
        _minted(job, False)
    else:
        for fill, default in _rest:
            fill(job, default)
    return job


def is_plain(wire: JobFields) -> bool:
    """Whether no group and no unique name depends on this job: finishing it is only a move."""
    return not (wire.keep or wire.group or wire.unique)


class JobChange(msgspec.Struct, omit_defaults=True):
    """Fields to set in the bytes of a job that moves; None leaves a field unchanged."""

    retries: int | None = None
    rescues: int | None = None
    interruptions: int | None = None
    attempts: int | None = None
    origin_queue: str | None = None
    counted: bool | None = None
    token: int | None = None
    nonce: str | None = None
    history: History | None = None
    error: str | None = None
    reason: str | None = None
    failed_at: str | None = None


def changed(raw: bytes, change: JobChange, drop: Sequence[str] = ()) -> bytes:
    """The bytes with these fields set and those of `drop` removed; every other field keeps its own bytes. Bytes that
    are not an object stay unchanged."""
    try:
        fields = _raw(raw)
    except UNREADABLE:
        return raw
    new = _raw(_escaped(_json(change)))
    whole = {name: new.get(name) or fields.get(name) or msgspec.Raw(_absent(name)) for name in FIELDS}
    whole |= {name: value for name, value in (fields | new).items() if name not in FIELDS and name not in drop}
    return b"{%b}" % b",".join([b"%b:%b" % (_text(name).encode(), bytes(value)) for name, value in whole.items()])


def attempts_of(wire: JobFields) -> tuple[Attempt, ...]:
    """The history for the port."""
    return read_attempts(wire.history or ())


def read_history(text: bytes) -> History:
    """The history that `history_json` wrote."""
    try:
        return msgspec.json.decode(text, type=History) if text else []
    except UNREADABLE:  # shown without its history rather than not at all
        return []


def read_attempts(history: Iterable[tuple[int, str, int, int, str, str]]) -> tuple[Attempt, ...]:
    """Attempts of a history; one with an unknown reason counts as failed."""
    return tuple(
        Attempt(number, worker, from_ms(claimed_at), from_ms(ended), reason_of(reason) or Reason.FAILED, error)
        for number, worker, claimed_at, ended, reason, error in history
    )


def history_json(history: History) -> bytes:
    """A history as text, as `states` stores it."""
    return _json(history) if history else b""


def reason_of(text: str) -> Reason | None:
    """The reason of this name, if there is one."""
    return _REASONS.get(text)


_REASONS = {reason.value: reason for reason in Reason}


def rfc3339(moment: datetime) -> str:
    """A moment in the seed's format: UTC, without trailing zeros."""
    text = (moment if moment.tzinfo is UTC else moment.astimezone(UTC)).isoformat()[:-6]
    return text.rstrip("0") + "Z" if moment.microsecond else text + "Z"


def from_ms(ms: int | float) -> datetime:
    """The instant of these milliseconds since 1970, the nearest that the calendar has."""
    try:
        return from_micros(int(ms) * 1_000)
    except OverflowError:
        return from_micros(clamped_ms(ms) * 1_000)


def _foreign(raw: bytes) -> JobFields:
    """A job with unknown fields, with nulls, or with fields in another spelling; raises if it is not a job."""
    bounded.check_nesting(raw)
    try:
        fields = _raw(raw)
        if not any(name.lower() in FIELDS for name in fields if name not in FIELDS):
            return _loose(raw)
    except UNREADABLE:
        pass
    return _liberal(raw)


def _liberal(raw: bytes) -> JobFields:
    """A job, field by field. The ValueError names the first invalid field."""
    bounded.check_nesting(raw)
    try:
        fields = _raw(raw)
    except UNREADABLE as error:
        raise ValueError(f"it is no JSON object: {bounded.why(error)}") from None
    found: dict[str, Any] = {}
    for name, value in fields.items():
        read = _READERS.get(name)
        if read is None and name.lower() in FIELDS:
            # Go's decoder in the seed accepts a field name in any case.
            raise ValueError(f"field {name}: it differs from {name.lower()} by its case alone")
        if read is None or bytes(value) == b"null":
            continue
        try:
            found[name] = read(msgspec.json.decode(value))
        except UNREADABLE as error:
            raise ValueError(f"field {name}: {bounded.why(error)}") from None
    if "id" not in found:
        raise ValueError("field id: it is missing")
    return JobFields(**found)


def _to_utc(wire: JobFields) -> None:
    """Converts its instants to UTC; a ValueError if one is outside of the calendar there."""
    for name in ("creation_time", "not_before", "failed_at"):
        at = getattr(wire, name)
        if at is not None:
            try:
                setattr(wire, name, bounded.in_utc(at))
            except ValueError as error:
                raise ValueError(f"field {name}: {error}") from None


def _created(value: object) -> datetime:
    return EPOCH if value == "" else bounded.instant(value)


def _instant_if_any(value: object) -> datetime | None:
    return None if value == "" else bounded.instant(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{bounded.shown(value)} is neither true nor false")
    return value


def _timeout_seconds(value: object) -> float:
    found = bounded.seconds(value)
    if found < 0:
        raise ValueError(f"{bounded.shown(value)} seconds are less than none")
    return found


def _header_texts(value: object) -> dict[str, str]:
    return {name: bounded.text(each) for name, each in msgspec.convert(value, dict[str, object]).items()}


_READERS: Mapping[str, Callable[[object], object]] = {
    **dict.fromkeys(("retries", "rescues", "interruptions", "attempts", "token"), bounded.integer),
    **dict.fromkeys(("delay", "window", "keep"), bounded.seconds),
    "timeout": _timeout_seconds,
    **dict.fromkeys(("counted", "lasting"), _flag),
    "filesize": lambda value: bounded.integer(value, 0, _SIZE_MAX),
    "creation_time": _created,
    "not_before": _instant_if_any,
    "failed_at": _instant_if_any,
    "headers": _header_texts,
    "history": lambda value: msgspec.convert(value, History),
    **dict.fromkeys(
        ("id", *TRACE, "filepath", "priority", "kind", "payload_b64", "origin_queue", "unique", "group", "nonce",
         "error", "reason"),
        bounded.text,
    ),
}  # fmt: skip


def _as_file(payload: bytes) -> _FilePayload | None:
    """The file of a payload, if it has exactly that form."""
    try:
        file = _file(payload)
    except UNREADABLE:
        return None
    named = (file.filepath or file.filesize) and 0 <= file.filesize <= _SIZE_MAX
    return file if named and _json(file) == payload else None


def _trace(headers: Mapping[str, str]) -> tuple[str, str, Mapping[str, str]]:
    trace, span = headers.get("trace_id", ""), headers.get("span_id", "")
    if trace or span:
        headers = {name: text for name, text in headers.items() if name not in TRACE or not text}
    return trace, span, headers


def _rare(job: Job) -> str:
    """Fields that few jobs have."""
    text = ""
    if job.not_before is not None:
        text += f',"not_before":"{rfc3339(job.not_before)}"'
    for name, time in (("delay", job.delay), ("timeout", job.timeout), ("window", job.window), ("keep", job.keep)):
        if time:
            text += f',"{name}":{_seconds(time)}'
        elif time is not None and name == "timeout":
            text += ',"timeout":0'
    for name, value in (("unique", job.unique), ("group", job.group)):
        if value:
            text += f',"{name}":{_text(value)}'
    return text + ',"lasting":true' if job.lasting else text


def _seconds(time: timedelta) -> str:
    micros = time // _MICROSECOND
    return str(micros // 1_000_000) if micros % 1_000_000 == 0 else f"{micros / 1_000_000:.6f}".rstrip("0")


def _text(text: str) -> str:
    """A JSON string with the seed's escapes."""
    return f'"{text}"' if _PLAIN(text) else _escaped(_json(text))


def _escaped(data: bytes) -> str:
    text = data.decode()
    for sign, code in (("&", "0026"), ("<", "003c"), (">", "003e"), ("\u2028", "2028"), ("\u2029", "2029")):
        if sign in text:
            text = text.replace(sign, f"\\u{code}")
    return text


def _absent(name: str) -> bytes:
    """A field of the eight that the bytes do not have."""
    return b"0" if name in ("filesize", "retries") else b'"1970-01-01T00:00:00Z"' if name == "creation_time" else b'""'


_COMMON = ("id", "kind", "queue", "priority", "payload", "headers", "timeout", "lasting")
_id, _kind, _queue, _priority, _payload, _headers, _timeout, _lasting = setters(Job, *_COMMON)
_rest = [(next(setters(Job, field.name)), field.default) for field in fields(Job) if field.name not in _COMMON]
_not_before, _delay, _unique, _window, _keep, _group, _minted = setters(
    Job, "not_before", "delay", "unique", "window", "keep", "group", "minted"
)


async def known_queues(client: RedisClient, keys: RedisKeys) -> list[str]:
    """Every queue that a job was enqueued in or that the settings name, in order."""
    try:
        put = {name.decode("utf-8", "replace") for name in await client.ask("SMEMBERS", keys.queues)}
    except WrongType:  # costs only the names in it; `jobs fsck` names the key
        put = set()
    return sorted(put | set(client.options.queues.values()))


@dataclass(frozen=True, slots=True)
class QueueGuess:
    """A queue, and whether the job's own bytes name it."""

    queue: str
    right: bool = True


@dataclass(frozen=True, slots=True)
class Router:
    """The rule: the queue a job names if it is known; without a name that of its priority, else the default's. For an
    unknown name there is no guess."""

    options: RedisOptions
    queues: Collection[str]

    def route(self, wire: JobFields | None) -> QueueGuess:
        """The queue of a job that another program left."""
        default = self.options.queues.get(self.options.default_priority, self.options.default_priority)
        if wire is None:
            return QueueGuess(default)
        if wire.origin_queue:
            known = wire.origin_queue in self.queues
            return QueueGuess(wire.origin_queue) if known else QueueGuess(default, right=False)
        by_priority = self.options.queues.get(wire.priority, wire.priority)
        return QueueGuess(by_priority if by_priority in self.queues else default)

    def back_to(self, wire: JobFields | None, queue: str) -> str:
        """The queue of a dead job that is requeued: where it came from, else the queue of its last claim."""
        return wire.origin_queue if wire is not None and wire.origin_queue in self.queues else queue
