"""`open_place`: an empty backend of any kind; `difference`: of a text to its fixture, which it writes if told to."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from servers.nats import Nats, nats
from servers.valkey import Valkey, valkey
from wire.placeholders import Issued
from wire.places import Place, Servers, place
from wrasse.jobs.record_queue import queue

FIXTURES = Path(__file__).parent / "fixtures"
RECORDS = bool(os.environ.get("WRASSE_TEST_RECORD_WIRE"))
OpenPlace = Callable[[str], Awaitable[Place]]
Difference = Callable[[str, str], str]
SHOWN_LINES, SHOWN_CHARS = 40, 600


@pytest.fixture(scope="session")
def wire_redis() -> Iterator[Valkey]:
    with valkey() as server:
        yield server


@pytest.fixture(scope="session")
def wire_nats() -> Iterator[Nats]:
    with nats() as server:
        yield server


@pytest.fixture(autouse=True)
def issued(monkeypatch: pytest.MonkeyPatch) -> Issued:
    """What is random is known again."""
    return Issued(monkeypatch)


@pytest.fixture(autouse=True)
def no_looks_beside_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that begins with an answer passes a due bucket before or after the next step has emptied it, by chance."""
    monkeypatch.setattr(queue, "EXPIRED_EVERY", math.inf)


@pytest.fixture
async def open_place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenPlace]:
    got = request.getfixturevalue
    servers = Servers(lambda: got("wire_redis"), lambda: got("wire_nats"), lambda: got("s3"))
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(name: str) -> Place:
            return await stack.enter_async_context(place(name, tmp_path, servers))

        yield open_one


@pytest.fixture
def difference() -> Difference:
    """How a text differs from `fixtures/<name>.txt`; empty if it does not."""

    def compare(name: str, text: str) -> str:
        path = FIXTURES / f"{name.replace(' ', '_')}.txt"
        if RECORDS:
            path.write_text(text)
        if not path.exists():
            return f"{path.name} was never recorded: python -m tests.wire --record"
        before, now = path.read_text().splitlines(), text.splitlines()
        lines = difflib.unified_diff(before, now, "recorded", "now", n=0, lineterm="")
        shown = "\n".join(line[:SHOWN_CHARS] for line in itertools.islice(lines, SHOWN_LINES))
        return shown and f"not as in fixtures/{path.name}:\n{shown}"

    return compare
