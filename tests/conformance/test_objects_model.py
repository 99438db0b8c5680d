"""Objects against a model: whatever is written, in whatever order, the store agrees with a dictionary."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from conformance.object_stores import ObjectStore, listed, whole
from wrasse.ports.objects import Data, ObjectDelete, Objects, WriteResult
from wrasse.ports.outcome import Outcome

T = TypeVar("T")

parts = st.sampled_from(["a", "b", "", ".", "%", "%o", "a-", "\x01", "n" * 199])
keys = st.lists(parts, min_size=1, max_size=3).map("/".join).filter(bool)
values = st.binary(max_size=3)
metadatas = st.sampled_from([{}, {"a": "1"}, {"b": "é", "c": ""}])


@dataclass(frozen=True)
class Known:
    """What the model says of one object."""

    data: bytes
    metadata: Mapping[str, str]
    version: str


class ObjectsMachine(RuleBasedStateMachine):
    """Random writes by two who share the store, some at an old version, compared after every step."""

    backend = "memory"

    def unlike_others(self, value: bytes) -> bytes:
        """The bytes to write, in place of these."""
        return value

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._place = tempfile.TemporaryDirectory()
        self.model: dict[str, Known] = {}
        self.versions: list[str] = ["never"]

    def run(self, act: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(act)

    @initialize()
    def open(self) -> None:
        self.store = ObjectStore(self.backend, Path(self._place.name))
        self.run(self.store.open())
        self.other: Objects = self.run(self.store.another())

    def teardown(self) -> None:
        self.run(self.store.close())
        self._runner.close()
        self._place.cleanup()

    @rule(key=keys, value=values, metadata=metadatas, streamed=st.booleans(), aside=st.booleans())
    def create(self, key: str, value: bytes, metadata: Mapping[str, str], streamed: bool, aside: bool) -> None:
        value = self.unlike_others(value)
        stored = self.run(self._side(aside).create(key, data(value, streamed), metadata=metadata))
        self._check(stored, key, key not in self.model, value, metadata)

    @rule(value=values, metadata=metadatas, streamed=st.booleans(), aside=st.booleans(), draw=st.data())
    def replace(
        self, value: bytes, metadata: Mapping[str, str], streamed: bool, aside: bool, draw: st.DataObject
    ) -> None:
        key = self._key(draw)
        at = self._at(key, draw)
        fits = key in self.model and self.model[key].version == at
        value = self.unlike_others(value)
        stored = self.run(self._side(aside).replace(key, data(value, streamed), at=at, metadata=metadata))
        self._check(stored, key, fits, value, metadata)

    @rule(aside=st.booleans(), draw=st.data())
    def delete(self, aside: bool, draw: st.DataObject) -> None:
        batch = [self._key(draw) for _ in range(draw.draw(st.integers(1, 3)))]
        deletes = [ObjectDelete(key, self._at(key, draw)) for key in batch]
        expected = [self._expect_delete(each) for each in deletes]
        assert list(self.run(self._side(aside).delete(deletes))) == expected

    @rule()
    def restart(self) -> None:
        self.run(self.store.reopen())
        self.other = self.run(self.store.another())

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "store"):
            return
        shown = [(info.key, info.size, info.version) for info in self.run(listed(self.other))]
        assert shown == [
            (key, len(self.model[key].data), self.model[key].version) for key in sorted(self.model, key=str.encode)
        ]
        for key, known in self.model.items():
            head = self.run(self.store.objects.head(key))
            assert head is not None
            assert Known(self.run(whole(self.other, key)), head.metadata, head.info.version) == known

    def _side(self, aside: bool) -> Objects:
        return self.other if aside else self.store.objects

    def _key(self, draw: st.DataObject) -> str:
        return draw.draw(st.sampled_from(sorted(self.model)) if self.model else keys)

    def _at(self, key: str, draw: st.DataObject) -> str:
        current = [self.model[key].version] * 3 if key in self.model else []
        return draw.draw(st.sampled_from([*current, *self.versions[-3:]]))

    def _expect_delete(self, delete: ObjectDelete) -> Outcome:
        known = self.model.get(delete.key)
        if known is None or known.version != delete.version:
            return Outcome.CONFLICT
        del self.model[delete.key]
        return Outcome.DONE

    def _check(self, stored: WriteResult, key: str, fits: bool, value: bytes, metadata: Mapping[str, str]) -> None:
        assert stored.outcome is (Outcome.DONE if fits else Outcome.CONFLICT)
        if fits:
            assert stored.version is not None
            assert stored.version not in self.versions
            self.versions.append(stored.version)
            self.model[key] = Known(value, metadata, stored.version)


def data(value: bytes, streamed: bool) -> Data:
    async def pieces() -> AsyncIterator[bytes]:
        for byte in value:
            yield bytes([byte])

    return pieces() if streamed else value


class DirectoryMachine(ObjectsMachine):
    backend = "directory"


class InTurnsMachine(ObjectsMachine):
    backend = "directory that cannot exchange names"


class StrictS3Machine(ObjectsMachine):
    """Versions name the bytes here, so no two writes have the same."""

    backend = "strict s3"

    def unlike_others(self, value: bytes) -> bytes:
        self.written = getattr(self, "written", 0) + 1
        return value + b" %04d" % self.written  # of one length: b"1" + b"1" is b"" + b"11"


class TestMemoryAgreesWithTheModel(ObjectsMachine.TestCase):
    settings = settings(max_examples=40, stateful_step_count=40)


class TestTheDirectoryAgreesWithTheModel(DirectoryMachine.TestCase):
    settings = settings(max_examples=25, stateful_step_count=30)


class TestADirectoryThatCannotExchangeNamesAgreesWithTheModel(InTurnsMachine.TestCase):
    settings = settings(max_examples=10, stateful_step_count=30)


class TestAStrictS3AgreesWithTheModel(StrictS3Machine.TestCase):
    settings = settings(max_examples=8, stateful_step_count=20)
