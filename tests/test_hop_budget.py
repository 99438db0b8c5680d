"""How many files of src/wrasse a call goes through: each journey has a budget, and one more file is a failure.

Traced are real calls, in every thread, after the same call was made before; spans are off, and files of the root
package (clock, ids, errors, ...) are not counted. Budgets are what holds today: lower them when a journey gets shorter.
Where a journey misses its target, the test names the target.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

import wrasse
from lease_server.scene import served
from servers.valkey import Valkey

ROOT = Path(wrasse.__file__).parent
TURNS = 5  # what runs beside the call may cross one turn, hardly all of them


class Trace:
    """Notes the code that is called while it listens; made before the threads that it is to hear."""

    def __init__(self) -> None:
        self._heard: set[CodeType] | None = None

    def note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self._heard is not None:
            self._heard.add(frame.f_code)

    async def files(self, journey: Callable[[], Awaitable[object]]) -> list[str]:
        """The files that the journey needs: those of the turn that needed the fewest."""
        await journey()
        turns = []
        for _ in range(TURNS):
            self._heard = heard = set[CodeType]()
            try:
                await journey()
            finally:
                self._heard = None
            called = {Path(code.co_filename) for code in heard if code.co_name != "<module>"}
            inside = {path.relative_to(ROOT) for path in called if path.is_relative_to(ROOT)}
            turns.append(sorted(path.as_posix() for path in inside if path.parent.parts))
        return min(turns, key=len)


@pytest.fixture
def trace() -> Iterator[Trace]:
    trace, before = Trace(), sys.getprofile()
    threading.setprofile(trace.note)
    sys.setprofile(trace.note)
    try:
        yield trace
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


@pytest.fixture(params=["sqlite", "redis"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'wrasse.db'}"
    server: Valkey = request.getfixturevalue("redis_server")
    return f"{server.url}?root={tmp_path.name}"


def check_budget(files: list[str], budget: int) -> None:
    assert 0 < len(files) <= budget, "\n".join([f"{len(files)} files, and {budget} are allowed:", *files])


def of(where: str, *, sqlite: int, redis: int) -> int:
    return sqlite if where.startswith("sqlite") else redis


async def test_an_enqueue_stays_within_its_files(trace: Trace, where: str) -> None:
    """Target: 10 on SQLite, 12 on Redis."""
    async with wrasse.connect(where) as app:
        files = await trace.files(lambda: app.jobs.enqueue("kind", b"payload"))
    check_budget(files, of(where, sqlite=14, redis=17))


async def test_a_job_is_claimed_run_and_completed_within_its_files(trace: Trace, where: str) -> None:
    """The target, 35, is reached."""
    async with wrasse.connect(where) as app:
        app.handler("kind")(_nothing)
        worker = await app._build_worker(1)

        async def one_job() -> None:
            heard, trace._heard = trace._heard, None
            await app.jobs.enqueue("kind", b"payload")
            trace._heard = heard
            assert await worker.run_pending() == 1

        files = await trace.files(one_job)
    check_budget(files, of(where, sqlite=20, redis=24))


async def test_a_publish_stays_within_its_files(trace: Trace, where: str) -> None:
    """Target: 10."""
    async with wrasse.connect(where) as app:
        files = await trace.files(lambda: app.streams.publish("orders.created", b"payload"))
    check_budget(files, of(where, sqlite=13, redis=14))


async def test_an_acquire_over_http_stays_within_its_files(trace: Trace, where: str) -> None:
    """Target: 18. Ten files are those of leases (rules, record, cache, cleanup, waiters, transactions), four are HTTP,
    and the others are the backend's and what all backends share: none of them only passes the call on."""
    keys = iter(range(1 + TURNS))
    async with wrasse.connect(where) as app:
        leases = (await app.open("leases")).leasing.leases
        async with served(leases) as server:

            async def acquire() -> None:
                asked = {"key": f"key{next(keys)}", "owner": "me", "ttl_seconds": 60}
                async with server.client.post("/v1/acquire", json=asked) as answer:
                    assert answer.status == 200, await answer.text()

            files = await trace.files(acquire)
    check_budget(files, of(where, sqlite=23, redis=25))


async def test_opening_an_app_stays_within_its_files(trace: Trace, where: str) -> None:
    """The target, 60 on Redis, is reached. Opened is what programs use: jobs, records and streams."""

    async def open_app() -> None:
        async with wrasse.connect(where) as app:
            await app.open("jobs", "records", "streams")

    check_budget(await trace.files(open_app), of(where, sqlite=34, redis=38))


async def test_a_longer_journey_fails_with_the_list_of_its_files(trace: Trace) -> None:
    async with wrasse.connect("memory:") as app:
        files = await trace.files(lambda: app.jobs.enqueue("kind", b"payload"))
    with pytest.raises(AssertionError, match=r"api/jobs\.py"):
        check_budget(files, len(files) - 1)


async def _nothing(job: wrasse.RunningJob) -> None:
    """A handler."""
