"""Bounded conversions: a value that another program wrote becomes one of ours, or a ValueError that says why not.

Every decoder of outside bytes converts with these and catches `UNREADABLE`, so that numbers and instants are checked
where they are read and nothing overflows later. A value with one meaning is accepted in any of its spellings: a number
as text, an instant as ISO 8601 or as a unix time.
"""

from __future__ import annotations

import math
import re
from binascii import Error as BadBase64, a2b_base64
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from wrasse.clock import EPOCH

# Whatever a parser raises for bytes that it cannot read.
UNREADABLE = (
    msgspec.MsgspecError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError,
)  # fmt: skip
INTEGER_MAX = (1 << 53) - 1  # what JSON, Lua and floats carry exactly
VALUE_MAX = INTEGER_MAX << 20  # of any number in our own records: beyond nanoseconds of the last instant there is
DURATION_MAX = timedelta(days=36_525)  # 100 years: any instant of today plus this is in the calendar
DURATION_SECONDS_MAX = DURATION_MAX.total_seconds()
EARLIEST = datetime.min.replace(tzinfo=UTC)
LATEST = datetime.max.replace(tzinfo=UTC)
MS_MIN, MS_MAX = ((each - EPOCH) // timedelta(milliseconds=1) for each in (EARLIEST, LATEST))
NESTING_MAX = 200  # arrays and objects inside one another; parsers stop at about a thousand, at a depth of their own

_SECONDS_BELOW = 100_000_000_000  # a unix time below this is in seconds: as milliseconds it would be before 1973
_NUMBER = re.compile(r"[+-]?\d{1,20}(\.\d{1,20})?", re.ASCII).fullmatch
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")
_SHOWN_CHARS = 60
T = TypeVar("T")


def decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    """What a typed decoder makes of a record's bytes, with every number and instant in it checked; a ValueError that
    says why there is nothing."""
    try:
        check_nesting(data)
        found = decode(data)
        check_values(found)
        return found
    except UNREADABLE as error:
        raise ValueError(why(error)) from None


def check_values(value: object) -> None:
    """A ValueError if a number, duration or instant in this value is one that cannot be calculated with."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value.isoformat()} has no time zone")
        in_utc(value)
    elif isinstance(value, timedelta):
        seconds(value.total_seconds())
    elif isinstance(value, int) and not -VALUE_MAX <= value <= VALUE_MAX:
        raise ValueError(f"{shown(value)} is not a number that was written here")
    elif isinstance(value, Mapping):
        for each in value.values():
            check_values(each)
    elif isinstance(value, tuple | list):
        for each in value:
            check_values(each)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            check_values(getattr(value, name))
    elif is_dataclass(value):
        for field in fields(value):
            check_values(getattr(value, field.name))


def integer(value: object, low: int = 0, high: int = INTEGER_MAX) -> int:
    """A whole number within these bounds: also as text, or as a float without a fraction."""
    if isinstance(value, str) and _NUMBER(value):
        value = float(value) if "." in value else int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value % 1:
        raise ValueError(f"{shown(value)} is not a whole number")
    if not low <= value <= high:
        raise ValueError(f"{shown(value)} is not between {low} and {high}")
    return int(value)


def seconds(value: object) -> float:
    """A duration in seconds, at most DURATION_MAX either way; also as text."""
    if isinstance(value, str) and _NUMBER(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is not a number of seconds")
    if not -DURATION_SECONDS_MAX <= value <= DURATION_SECONDS_MAX:  # also false for NaN
        raise ValueError(f"{shown(value)} seconds are more than 100 years")
    return value


def instant(value: object) -> datetime:
    """An instant in UTC: ISO 8601, or a unix time in seconds or, from 1e11 on, in milliseconds; also as text. One
    without a zone is UTC."""
    if isinstance(value, str) and _NUMBER(value):
        value = float(value) if "." in value else int(value)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(f"{value[:-1]}Z" if value.endswith("z") else value)  # RFC 3339 has both
        except ValueError:
            raise ValueError(f"{shown(value)} is neither an ISO 8601 time nor a unix time") from None
    if isinstance(value, datetime):
        return in_utc(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{shown(value)} is not a time")
    ms = value * 1_000 if abs(value) < _SECONDS_BELOW else value
    if not MS_MIN <= ms <= MS_MAX:
        raise ValueError(f"{shown(value)} is a time outside of the years 1 to 9999")
    return EPOCH + timedelta(milliseconds=ms)


def in_utc(at: datetime) -> datetime:
    """The same instant in UTC; one without a zone is UTC."""
    if at.tzinfo is UTC:
        return at
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{at.isoformat()} is a time outside of the years 1 to 9999") from None


def clamped_ms(number: float | bytes | str) -> int:
    """Milliseconds since 1970 as a store gives them, cut to what the calendar has: a score may also be infinite."""
    value = float(number) if isinstance(number, bytes | str) else number
    return int(min(max(value, MS_MIN), MS_MAX))


def text(value: object) -> str:
    """Text; a whole number is taken as its digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(integer(value, -INTEGER_MAX))
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text")
    return value


def encodable(text: str) -> str:
    """The same text as far as UTF-8 has bytes for it: lone surrogates, as in names of files that are no UTF-8, become
    escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def json_size(text: str) -> int:
    """How many bytes a text takes in JSON, where one control character is six."""
    return len(msgspec.json.encode(text)) - 2


def from_base64(data: str) -> bytes:
    """The bytes that this base64 stands for."""
    try:
        return a2b_base64(data, strict_mode=True) if data else b""
    except (BadBase64, ValueError):
        raise ValueError("it is not base64") from None


def check_nesting(data: bytes) -> None:
    """Refuses JSON that is nested deeper than NESTING_MAX, before a parser meets it at a depth of its own."""
    if data.count(b"[") + data.count(b"{") <= NESTING_MAX:
        return
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        if depth > NESTING_MAX:
            raise ValueError(f"it is nested more than {NESTING_MAX} levels deep")


def why(error: BaseException) -> str:
    """What was wrong, in one line for a person."""
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error).partition("\n")[0][:200] or type(error).__name__


def shown(value: object) -> str:
    """The value, shortened, as an error shows it."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    full = repr(value)
    return full if len(full) <= _SHOWN_CHARS else full[: _SHOWN_CHARS - 3] + "..."
