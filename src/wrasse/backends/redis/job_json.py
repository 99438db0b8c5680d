"""A job as JSON: the design document's eight fields first, in its origin's order and with its escapes, then ours.

Any program may write and read these bytes. A field that has its default is absent; fields nobody here knows survive
every change. Durations are seconds, moments of `history` are milliseconds since 1970. What is no object with a usable
`id` is no job: `decode` gives None, and whoever met the bytes buries them as they are.

A file job is one without `payload_b64` that names a file; its payload here is `{"filepath":...,"filesize":...}`, and a
payload of exactly that form is written as a file job. `trace_id` and `span_id` are headers of the same names.
"""

from __future__ import annotations

import re
from binascii import Error as BadBase64, a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta

import msgspec

from wrasse.clock import EPOCH, from_micros
from wrasse.errors import UsageError
from wrasse.ports.jobs import ID_BYTES_MAX, NOTHING, Attempt, Job, Reason

FIELDS = ("id", "filepath", "filesize", "priority", "retries", "creation_time", "trace_id", "span_id")
TRACE = ("trace_id", "span_id")
History = list[tuple[int, str, int, int, str, str]]

_PLAIN = re.compile(r"[\w .,:;/@#%+=()*!?~^$|\[\]{}'`-]*", re.ASCII).fullmatch  # nothing here is ever escaped
_MICROSECOND = timedelta(microseconds=1)
_NO_DELAY = timedelta(0)
_new = object.__new__


class Wire(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=False, gc=False):
    """All fields that mean something here. Names and order are those of the bytes."""

    id: str
    filepath: str = ""
    filesize: int = 0
    priority: str = ""
    retries: int = 0
    creation_time: datetime = EPOCH
    trace_id: str = ""
    span_id: str = ""
    kind: str = ""
    payload_b64: str | None = None
    headers: dict[str, str] | None = None
    not_before: datetime | None = None
    delay: float = 0
    timeout: float | None = None
    rescues: int = 0
    interruptions: int = 0
    attempts: int = 0
    origin_queue: str = ""
    unique: str = ""
    window: float = 0
    keep: float = 0
    group: str = ""
    counted: bool = False
    lasting: bool = False
    token: int = 0
    nonce: str = ""
    history: History | None = None
    error: str = ""
    reason: str = ""
    failed_at: datetime | None = None


class _Loose(Wire, forbid_unknown_fields=False):
    """The same beside fields of others."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    filepath: str
    filesize: int


_strict = msgspec.json.Decoder(Wire).decode
_loose = msgspec.json.Decoder(_Loose).decode
_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_file = msgspec.json.Decoder(_File).decode
_json = msgspec.json.Encoder().encode


def encode(job: Job, created: str, queue: str) -> bytes:
    """The bytes of a new job. `created` is when, as `rfc3339` writes it; `queue` the one its priority stands for."""
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


def decode(raw: bytes) -> Wire | None:
    """What the bytes say, or None if they are no job."""
    try:
        wire = _strict(raw)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError):
        found = _foreign(raw)
        if found is None:
            return None
        wire = found
    if not 1 <= len(wire.id) <= ID_BYTES_MAX or not wire.id.isprintable() or wire.filesize < 0 or wire.retries < 0:
        return None
    return wire


def payload_of(wire: Wire) -> bytes | None:
    """The payload as it was put; None if it cannot be read."""
    text = wire.payload_b64
    if text is None:
        return _json(_File(wire.filepath, wire.filesize)) if wire.filepath or wire.filesize else b""
    try:
        return a2b_base64(text, strict_mode=True) if text else b""
    except (BadBase64, ValueError):
        return None


def traced(wire: Wire) -> Mapping[str, str]:
    """The headers with the trace."""
    trace = {name: text for name, text in zip(TRACE, (wire.trace_id, wire.span_id), strict=True) if text}
    return {**(wire.headers or NOTHING), **trace}


def seconds(number: float) -> timedelta:
    """A duration as the bytes have it."""
    return timedelta(seconds=number) if number else _NO_DELAY


def job_of(wire: Wire, queue: str) -> Job | None:
    """The job that was put, as it is found in this queue; None if its payload cannot be read."""
    payload = payload_of(wire)
    return None if payload is None else _made(wire, queue, payload)


def _made(wire: Wire, queue: str, payload: bytes) -> Job:
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
        _not_before(job, None if wire.not_before is None else utc(wire.not_before))
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


def is_plain(wire: Wire) -> bool:
    """Whether nothing of this job is tied to others: finishing it is only a move."""
    return not (wire.keep or wire.group or wire.unique)


class Change(msgspec.Struct, omit_defaults=True):
    """Fields to set in the bytes of a job that moves; what is None stays as it is."""

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


def changed(raw: bytes, change: Change, drop: Sequence[str] = ()) -> bytes:
    """The bytes with these fields set and those of `drop` gone; every other field keeps its own bytes. Bytes that are
    no object stay as they are."""
    try:
        fields = _raw(raw)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError):
        return raw
    new = _raw(_escaped(_json(change)))
    whole = {name: new.get(name) or fields.get(name) or msgspec.Raw(_absent(name)) for name in FIELDS}
    whole |= {name: value for name, value in (fields | new).items() if name not in FIELDS and name not in drop}
    return b"{%b}" % b",".join([b"%b:%b" % (_text(name).encode(), bytes(value)) for name, value in whole.items()])


def attempts_of(wire: Wire) -> tuple[Attempt, ...]:
    """The history as the port shows it."""
    return read_attempts(wire.history or ())


def read_history(text: bytes) -> History:
    """The history that `history_json` wrote."""
    return msgspec.json.decode(text, type=History) if text else []


def read_attempts(history: Iterable[tuple[int, str, int, int, str, str]]) -> tuple[Attempt, ...]:
    """Attempts of a history; one whose reason nobody knows counts as failed."""
    return tuple(
        Attempt(number, worker, from_ms(taken), from_ms(ended), reason_of(reason) or Reason.FAILED, error)
        for number, worker, taken, ended, reason, error in history
    )


def history_json(history: History) -> bytes:
    """A history as text, as `hold_text` stores it."""
    return _json(history) if history else b""


def reason_of(text: str) -> Reason | None:
    """The reason of this name, if there is one."""
    return _REASONS.get(text)


_REASONS = {reason.value: reason for reason in Reason}


def rfc3339(moment: datetime) -> str:
    """As the origin writes a moment: UTC, with trailing zeros cut."""
    text = (moment if moment.tzinfo is UTC else moment.astimezone(UTC)).isoformat()[:-6]
    return text.rstrip("0") + "Z" if moment.microsecond else text + "Z"


def utc(moment: datetime) -> datetime:
    """The same moment, aware; one without a zone is taken for UTC."""
    if moment.tzinfo is UTC:
        return moment
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def from_ms(ms: int | float) -> datetime:
    """The instant of so many milliseconds since 1970."""
    return from_micros(int(ms) * 1_000)


def check_file(filepath: object, filesize: object, retries: object = 0) -> None:
    """Refuses, by name, a field of a file job that the origin could not read."""
    if not isinstance(filepath, str):
        raise UsageError(f"filepath is {type(filepath).__name__}, not text", do="name the file by its path")
    for name, value in (("filesize", filesize), ("retries", retries)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise UsageError(f"{name} is {value!r}", do=f"{name} is a whole number that is not negative")


def file_payload(filepath: str, filesize: int) -> bytes:
    """The payload of a file job."""
    check_file(filepath, filesize)
    return _json(_File(filepath, filesize))


def _foreign(raw: bytes) -> Wire | None:
    """A job with fields of others, or with nulls; None for one whose fields are of a wrong type, or that has a field
    which differs from one of the eight by its case alone: the origin would take it for that."""
    try:
        fields = _raw(raw)
        if any(name not in FIELDS and name.lower() in FIELDS for name in fields):
            return None
        nulls = [name for name, value in fields.items() if bytes(value) == b"null"]
        if not nulls:
            return _loose(raw)
        return _loose(_json({name: value for name, value in fields.items() if name not in nulls}))
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _as_file(payload: bytes) -> _File | None:
    """The file that a payload names, if it says exactly that and nothing else."""
    try:
        file = _file(payload)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    named = (file.filepath or file.filesize) and file.filesize >= 0
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
    """A JSON string as the origin escapes it."""
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


def setters(kind: type, *names: str) -> Iterator[Callable[[object, object], None]]:
    """What fills each of these slots."""
    return (kind.__dict__[name].__set__ for name in names)


_COMMON = ("id", "kind", "queue", "priority", "payload", "headers", "timeout", "lasting")
_id, _kind, _queue, _priority, _payload, _headers, _timeout, _lasting = setters(Job, *_COMMON)
_rest = [(next(setters(Job, field.name)), field.default) for field in fields(Job) if field.name not in _COMMON]
_not_before, _delay, _unique, _window, _keep, _group, _minted = setters(
    Job, "not_before", "delay", "unique", "window", "keep", "group", "minted"
)
