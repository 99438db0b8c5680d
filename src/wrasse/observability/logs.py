"""Logs: one JSON object per line on stderr, with a fixed set of keys, and no confidential data.

A line has `level`, `ts` and `msg`, and the allowed keys of `extra`. Other keys are dropped and counted. Paths and the
secrets of URLs are removed from every text. An error is logged as its type, with its text only if wrasse wrote that
text, and messages of other libraries are logged without their arguments, which may be data.

A repeated message is limited to LINES_MAX per second, and one line counts those that were suppressed.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from wrasse.clock import Clock, SystemClock
from wrasse.config.redaction import hide
from wrasse.errors import BadPayload, JobFailed, WrasseError
from wrasse.jobs.trace import CURRENT

CANONICAL = ("level", "ts", "msg", "trace_id", "span_id", "job_id", "queue", "worker_id", "request_id", "namespace")
OURS = (
    "sweep", "run", "outcome", "outcomes", "reason", "count", "guard", "since", "attempt", "kind", "state", "role",
    "roles", "address", "error", "where", "logger", "signal", "seconds", "seen", "kept", "done", "conflict", "failed",
    "setting", "source", "version", "pid", "owner", "key", "slots", "queues", "sweeps", "backend", "of", "stream",
    "streams", "backends", "found", "enqueued", "known", "skipped", "leases",
)  # fmt: skip
ALLOWED = frozenset(CANONICAL + OURS)
LINES_MAX = 100  # of one message, per second
MESSAGES_MAX = 500  # different messages counted separately within a second
VALUE_CHARS_MAX = 500
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_NAMES = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warn", logging.ERROR: "error"}
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# At least two segments, so that `5 jobs/s` and `application/json` stay readable.
_PATH = re.compile(r"(?<![\w:/.])(?:~|\.{0,2})(?:/[^\s'\"<>:,;]+)+|\b[A-Za-z]:\\\S+|(?:(?<=sqlite:)|(?<=file:))/\S+")


class LogTally:
    """What was not logged: keys that are not allowed, and suppressed lines."""

    __slots__ = ("dropped_keys", "suppressed_lines")

    def __init__(self) -> None:
        self.dropped_keys = 0
        self.suppressed_lines = 0


@dataclass(slots=True)
class _MessageCount:
    """The count of one message in the current second."""

    second: int
    passed: int = 0
    suppressed: int = 0


class LogHandler(logging.Handler):
    """Writes the lines. `human` formats them for people instead of programs."""

    def __init__(self, stream: TextIO, clock: Clock, tally: LogTally, *, human: bool = False) -> None:
        super().__init__()
        self._stream = stream
        self._clock = clock
        self._tally = tally
        self.human = human
        self._windows: dict[str, _MessageCount] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record, or counts it if its message exceeds the limit."""
        second = int(self._clock.monotonic())
        for line in self._ended(second):
            self._write(line)
        text = _message(record)
        bucket = text if text in self._windows or len(self._windows) < MESSAGES_MAX else "many different messages"
        window = self._windows.setdefault(bucket, _MessageCount(second))
        if window.passed >= LINES_MAX:
            window.suppressed += 1
            self._tally.suppressed_lines += 1
            return
        window.passed += 1
        line = {
            "level": _NAMES.get(min(record.levelno, logging.ERROR), "info"),
            "ts": _instant(datetime.fromtimestamp(record.created, UTC)),
            "msg": text,
        }
        self._write(line | self._fields(record))

    def settle(self) -> None:
        """Reports suppressed lines so far; the daemon calls this every second, and at its end."""
        for line in list(self._ended(int(self._clock.monotonic()) + 1)):
            self._write(line)

    def close(self) -> None:
        """Reports all suppressed lines."""
        self.settle()
        super().close()

    def _ended(self, second: int) -> Iterator[Mapping[str, object]]:
        for text, window in [each for each in self._windows.items() if each[1].second < second]:
            del self._windows[text]
            if window.suppressed:
                now = _instant(self._clock.now())
                yield {"level": "warn", "ts": now, "msg": "suppressed", "of": text, "count": window.suppressed}

    def _fields(self, record: logging.LogRecord) -> dict[str, object]:
        fields: dict[str, object] = {}
        for key, value in vars(record).items():
            if key in _STANDARD:
                continue
            if key not in ALLOWED or key in ("level", "ts", "msg"):
                self._tally.dropped_keys += 1
            elif value is not None:
                fields[key] = _value(value)
        span = CURRENT.get()
        if span is not None:
            fields.setdefault("trace_id", span.trace_id)
            fields.setdefault("span_id", span.span_id)
        if not _own(record):
            fields["logger"] = record.name
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = describe(record.exc_info[1])
            fields["where"] = _frame(record.exc_info[1])
        return fields

    def _write(self, line: Mapping[str, object]) -> None:
        try:
            text = _human_text(line) if self.human else json.dumps(line, ensure_ascii=False, separators=(",", ":"))
            self._stream.write(text + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # stderr is closed; the work continues, and metrics count the lost line.
            self._tally.suppressed_lines += 1


def start_logging(
    level: str, *, stream: TextIO | None = None, clock: Clock | None = None, human: bool = False
) -> tuple[LogHandler, LogTally]:
    """Sets up the handler for our loggers; returns it and its counters."""
    tally = LogTally()
    handler = LogHandler(stream or sys.stderr, clock or SystemClock(), tally, human=human)
    own = logging.getLogger("wrasse")
    own.handlers = [handler]
    own.propagate = False
    own.setLevel(_LEVELS[level])
    return handler, tally


def hear_strangers(handler: LogHandler) -> None:
    """Logs the warnings of other libraries and of job handlers, unless the user has configured logging."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)


def describe(error: BaseException) -> str:
    """An error for a log: its type, and its text only if that text is ours and contains no data."""
    name = type(error).__name__
    if not isinstance(error, WrasseError) or isinstance(error, (BadPayload, JobFailed)):
        return name
    return scrub(f"{name}: {error.message}")


def scrub(text: str) -> str:
    """The text without file paths and without the users and passwords of URLs."""
    return _PATH.sub("<path>", hide(text))


def _own(record: logging.LogRecord) -> bool:
    return record.name == "wrasse" or record.name.startswith("wrasse.")


def _message(record: logging.LogRecord) -> str:
    if _own(record):
        return scrub(record.getMessage())[:VALUE_CHARS_MAX]
    # Arguments of other libraries are data, and so may be further lines, as asyncio's are.
    text = record.msg.split("\n", 1)[0] if isinstance(record.msg, str) else type(record.msg).__name__
    return scrub(text)[:VALUE_CHARS_MAX]


def _value(value: object) -> object:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime):
        return _instant(value)
    if isinstance(value, BaseException):
        return describe(value)
    if isinstance(value, (list, tuple)):
        return [_value(each) for each in value[:20]]
    return scrub(str(value))[:VALUE_CHARS_MAX]


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _frame(error: BaseException) -> str:
    """The innermost of our lines in the traceback, by module, without a path."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("wrasse"):
            found = f"{module}:{frame.f_code.co_name}:{line}"
    return found


def _human_text(line: Mapping[str, object]) -> str:
    ts, level, rest = str(line["ts"])[11:19], str(line["level"]), {**line}
    pairs = " ".join(f"{key}={value}" for key, value in rest.items() if key not in ("ts", "level", "msg"))
    return f"{ts} {level:5} {line['msg']}" + (f"  {pairs}" if pairs else "")
