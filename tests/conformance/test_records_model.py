"""Records against a model: whatever is written, in whatever order, the records agree with a dictionary."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from conformance.stores import Store
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Record, Records, Written, stored_name

T = TypeVar("T")

keys = st.sampled_from(["a", "a/b", "a%", "b", "B"])
values = st.binary(max_size=3)
dues = st.none() | st.integers(-60, 60).map(lambda n: timedelta(seconds=n))


class RecordsMachine(RuleBasedStateMachine):
    """Random writes, some of them asked twice, some at an old version, compared after every step."""

    backend = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._place = tempfile.TemporaryDirectory()
        self._nonces = count()
        self.model: dict[str, Record] = {}
        self.versions: list[str] = ["never"]

    def run(self, act: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(act)

    @initialize()
    def open(self) -> None:
        self.store = Store(self.backend, Path(self._place.name))
        self.run(self.store.open())

    def teardown(self) -> None:
        self.run(self.store.close())
        self._runner.close()
        self._place.cleanup()

    @property
    def records(self) -> Records:
        return self.store.records()

    @rule(key=keys, value=values, due=dues, named=st.booleans())
    def create(self, key: str, value: bytes, due: timedelta | None, named: bool) -> None:
        nonce, due_at = self._nonce(named), self._instant(due)
        fits = key not in self.model
        written = self.run(self.records.create(key, value, due_at=due_at, nonce=nonce))
        self._check(written, key, fits, Record(key, value, written.version or "", due_at), nonce)
        if nonce is not None:
            again = self.run(self.records.create(key, value, due_at=due_at, nonce=nonce))
            assert (again.outcome, again.version) == (written.outcome, written.version)

    @rule(key=keys, value=values, due=dues, named=st.booleans(), data=st.data())
    def put(self, key: str, value: bytes, due: timedelta | None, named: bool, data: st.DataObject) -> None:
        nonce, due_at, at = self._nonce(named), self._instant(due), self._at(key, data)
        fits = key in self.model and self.model[key].version == at
        written = self.run(self.records.put(key, value, at=at, due_at=due_at, nonce=nonce))
        self._check(written, key, fits, Record(key, value, written.version or "", due_at), nonce)
        if nonce is not None:
            again = self.run(self.records.put(key, value, at=at, due_at=due_at, nonce=nonce))
            assert (again.outcome, again.version) == (written.outcome, written.version)

    @rule(key=keys, named=st.booleans(), data=st.data())
    def delete(self, key: str, named: bool, data: st.DataObject) -> None:
        nonce, at = self._nonce(named), self._at(key, data)
        fits = key in self.model and self.model[key].version == at
        for _ in range(2 if nonce is not None else 1):
            written = self.run(self.records.delete(key, at=at, nonce=nonce))
            self._check(written, key, fits, None, nonce)

    @rule(duration=st.integers(0, 40).map(lambda n: timedelta(seconds=n)))
    def wait(self, duration: timedelta) -> None:
        self.run(self.store.pass_time(duration))

    @rule()
    def restart(self) -> None:
        self.run(self.store.reopen())

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "store"):
            return
        shown = list(self.run(self.records.page("", None, 100)))
        assert shown == sorted(self.model.values(), key=lambda record: stored_name(record.key).encode())
        assert [self.run(self.records.get(key)) for key in self.model] == list(self.model.values())

    @invariant()
    def due(self) -> None:
        if not hasattr(self, "store"):
            return
        page = self.run(self.records.due(None, None, 100))
        moments = [record.due_at for record in page]
        assert moments == sorted(moment for moment in moments if moment is not None)
        horizon = page.at - self.records.resolution
        expected = {r.key for r in self.model.values() if r.due_at is not None and r.due_at <= horizon}
        assert expected <= {record.key for record in page} <= set(self.model)

    def _nonce(self, named: bool) -> str | None:
        return f"n{next(self._nonces)}" if named else None

    def _instant(self, due: timedelta | None) -> datetime | None:
        return None if due is None else self.store.clock.now() + due

    def _at(self, key: str, data: st.DataObject) -> str:
        current = [self.model[key].version] * 3 if key in self.model else []
        return data.draw(st.sampled_from([*current, *self.versions[-5:]]))

    def _check(self, written: Written, key: str, fits: bool, record: Record | None, nonce: str | None) -> None:
        if not fits:
            # A refusal may be uncertain only for one who could have asked before.
            refusals = (Outcome.CONFLICT,) if nonce is None else (Outcome.CONFLICT, Outcome.UNKNOWN)
            assert written.outcome in refusals
            return
        assert written.outcome is Outcome.DONE
        if record is None:
            self.model.pop(key, None)
            return
        assert written.version not in (None, *self.versions)
        self.versions.append(record.version)
        self.model[key] = record


class SqliteRecordsMachine(RecordsMachine):
    backend = "sqlite"


class DirectoryRecordsMachine(RecordsMachine):
    backend = "directory"


class StrictS3RecordsMachine(RecordsMachine):
    backend = "strict s3"


class TestMemoryAgreesWithTheModel(RecordsMachine.TestCase):
    settings = settings(max_examples=60, stateful_step_count=50)


class TestSqliteAgreesWithTheModel(SqliteRecordsMachine.TestCase):
    settings = settings(max_examples=15, stateful_step_count=40)


class TestTheDirectoryAgreesWithTheModel(DirectoryRecordsMachine.TestCase):
    settings = settings(max_examples=15, stateful_step_count=40)


class RedisRecordsMachine(RecordsMachine):
    backend = "redis"


class TestRedisAgreesWithTheModel(RedisRecordsMachine.TestCase):
    settings = settings(max_examples=15, stateful_step_count=40)


class TestAStrictS3AgreesWithTheModel(StrictS3RecordsMachine.TestCase):
    settings = settings(max_examples=8, stateful_step_count=25)


class NatsRecordsMachine(RecordsMachine):
    backend = "nats"


class TestNatsAgreesWithTheModel(NatsRecordsMachine.TestCase):
    settings = settings(max_examples=15, stateful_step_count=40)
