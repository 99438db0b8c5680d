"""What an error says is of use: a reason, a way out, and never more names than anybody reads."""

from __future__ import annotations

import errno

import pytest

from wrasse.errors import KNOWN_MAX, UnknownName, reason_of


@pytest.mark.parametrize(
    ("known", "do"),
    [
        (["count", "grace"], "write 'count'"),
        (["grace", "exec"], "use one of: exec, grace"),
        ([], "look around"),
        ([f"z{number}" for number in range(KNOWN_MAX + 1)], "look around"),
    ],
)
def test_a_name_that_is_not_known_is_answered_with_something_to_do(known: list[str], do: str) -> None:
    assert UnknownName("cuont", known, do="look around").do == do


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 110] other"), "Connection refused"),
        (OSError(1, "[SSL] record layer failure"), "[SSL] record layer failure"),
        (OSError(-2, "Name or service not known"), "Name or service not known"),
    ],
)
def test_the_reason_of_a_failed_connection_is_a_reason(error: OSError, reason: str) -> None:
    assert reason_of(error) == reason
