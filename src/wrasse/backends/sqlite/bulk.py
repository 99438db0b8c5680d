"""Many rows in one statement, and many rows in one answer.

apsw releases the interpreter's lock at every step of a statement, and while another thread computes it takes up to 5 ms
to get it back. So a batch must not be one step per job: rows are written as one long VALUES, keys are passed as one
array, and rows are read as one JSON text.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

import apsw

_ROWS_MAX = 256
_TEXT_MAX = 16_000  # apsw caches compiled statements of up to 16 KiB
_VARIABLES_MAX = 32_766


def write_rows(
    db: apsw.Connection,
    before: str,
    rows: Sequence[Sequence[apsw.SQLiteValue]],
    after: str = "",
    start: tuple[apsw.SQLiteValue, ...] = (),
) -> None:
    """Runs `before VALUES (...), (...) after` for all rows, in few different statements, so that their compiled forms
    are reused. `start` is for the variables of `before`."""
    if not rows:
        return
    row = f"({','.join('?' * len(rows[0]))})"
    most = min(
        _ROWS_MAX,
        (_TEXT_MAX - len(before) - len(after)) // (len(row) + 1),
        (_VARIABLES_MAX - len(start)) // len(rows[0]),
    )
    done = 0
    while left := len(rows) - done:
        # Powers of two: a batch of any size uses a few statements out of a small set.
        count = 1 << (min(left, most).bit_length() - 1)
        values = [*start, *chain.from_iterable(rows[done : done + count])]
        db.execute(f"{before} VALUES {','.join([row] * count)} {after}", values)
        done += count


def text(stored: bytes) -> str:
    """A text that was read as a blob, with a replacement for each byte that is not UTF-8. The driver raises for such a
    text, and the rows after it would not be read."""
    return stored.decode("utf-8", "replace")


def numbers(values: Iterable[int]) -> apsw.CArrayBinding:
    """For `IN carray(?)`; not empty."""
    return apsw.carray(array("q", values))


def texts(values: Iterable[str]) -> apsw.CArrayBinding:
    """For `IN carray(?)`; not empty."""
    return apsw.carray(tuple(values))
