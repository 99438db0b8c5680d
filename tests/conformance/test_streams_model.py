"""Streams and groups against two models: the memory backend, step by step, and an account of every delivery.

Both stores get the same random story on the same clock and must answer alike. Beside them an account is kept of what
each group was given and has answered, which holds the laws: nothing acked comes back, nothing unacked is trimmed from
under a protecting group, counts only grow, and what is handed out together is in order.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from conformance.stores import Store
from wrasse.errors import UsageError
from wrasse.ports.groups import Ack, DeadLetter, Delivery, Nak, StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import START, Draft, EntryId, StreamState

T = TypeVar("T")
Act = Callable[[Any], Coroutine[Any, Any, T]]
SUBJECTS, GROUPS, CONSUMERS = ("a.x", "a.y", "b"), ("g", "h"), ("c1", "c2", "c3")
DEAD = "gbe._deadletter.x"
TIMEOUT = timedelta(seconds=30)

subjects, groups, consumers = st.sampled_from(SUBJECTS), st.sampled_from(GROUPS), st.sampled_from(CONSUMERS)
limits = st.integers(1, 7)
drafts = st.builds(
    Draft,
    subject=subjects,
    body=st.binary(max_size=3),
    key=st.sampled_from(["", "", "", "k", "l"]),
    fields=st.none() | st.dictionaries(st.sampled_from("xy"), st.binary(max_size=2), max_size=2),
)


class LogMachine(RuleBasedStateMachine):
    """Random appends, marks, trims, waits and restarts."""

    backend = "sqlite"

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._place = tempfile.TemporaryDirectory()
        self.handed: dict[tuple[str, str, EntryId], Delivery] = {}
        self.acked: set[tuple[str, str, EntryId]] = set()
        self.ids: dict[str, list[EntryId]] = {subject: [] for subject in (*SUBJECTS, DEAD)}

    @initialize()
    def open(self) -> None:
        self.model = Store("memory", Path(self._place.name))
        self.store = Store(self.backend, Path(self._place.name), clock=self.model.clock)
        for store in (self.model, self.store):
            self._runner.run(store.open())

    def teardown(self) -> None:
        for store in (self.model, self.store):
            self._runner.run(store.close())
        self._runner.close()
        self._place.cleanup()

    def both(self, act: Act[T]) -> T:
        """The same act on both; gives the answer on which they agree."""
        answers = []
        for store in (self.model, self.store):
            try:
                answers.append(("answer", self._runner.run(act(store.backend))))
            except UsageError as error:
                answers.append((type(error).__name__, str(error)))
        assert answers[0] == answers[1], f"memory said {answers[0]}, {self.backend} said {answers[1]}"
        return answers[1][1] if answers[1][0] == "answer" else None

    @rule(batch=st.lists(drafts, min_size=1, max_size=4))
    def append(self, batch: Sequence[Draft]) -> None:
        ids = self.both(lambda store: store.streams.append(batch))
        for draft, id in zip(batch, ids or (), strict=ids is not None):
            known = self.ids[draft.subject]
            if id not in known:
                assert not known or id > known[-1]
                known.append(id)

    @rule(subject=subjects, group=groups, data=st.data())
    def mark(self, subject: str, group: str, data: st.DataObject) -> None:
        if not self.ids[subject]:
            return
        upto = data.draw(st.sampled_from(self.ids[subject]))
        if self.both(lambda store: store.groups.mark(subject, group, upto)) is Outcome.DONE:
            self.acked |= {(subject, group, id) for id in self.ids[subject] if id <= upto}

    @rule(
        subject=subjects,
        age=st.none() | st.integers(0, 60),
        protect=st.sets(groups),
        limit=limits,
        data=st.data(),
    )
    def trim(self, subject: str, age: int | None, protect: set[str], limit: int, data: st.DataObject) -> None:
        known = self.ids[subject]
        below = data.draw(st.none() | st.sampled_from(known)) if known else None
        before = self._runner.run(_whole(self.store.backend, subject))
        trimmed = self.both(
            lambda store: store.streams.trim(
                subject,
                age=None if age is None else timedelta(seconds=age),
                below=below,
                protect=sorted(protect),
                limit=limit,
            )
        )
        after = self._runner.run(_whole(self.store.backend, subject))
        gone = before[: len(before) - len(after)]
        assert len(gone) == trimmed.count <= limit
        started = {group: self._floor(subject, group) for group in protect}
        assert all(id <= trimmed.floor for id in gone)
        assert all(floor is not None and (not gone or gone[-1] <= floor) for floor in started.values()) or not gone

    @rule(seconds=st.sampled_from([0, 10, 20, 40, 130]))
    def wait(self, seconds: int) -> None:
        self.model.clock.advance(timedelta(seconds=seconds))

    @rule()
    def restart(self) -> None:
        self._runner.run(self.store.reopen())

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "store"):
            return
        self.both(_snapshot)

    def _floor(self, subject: str, group: str) -> EntryId | None:
        info = self._runner.run(self.store.backend.streams.info(subject))
        return next((state.floor for state in (info.groups if info else ()) if state.name == group), None)


class StreamsMachine(LogMachine):
    """The same with deliveries and answers, on backends that tell all of what they do."""

    @rule(subject=subjects, group=groups, first=st.booleans(), back=st.integers(0, 90))
    def join(self, subject: str, group: str, first: bool, back: int) -> None:
        at = self.model.clock.now() - timedelta(seconds=back)
        start = StartAt(first=True) if first else StartAt(at=at) if back % 2 else StartAt()
        self.both(lambda store: store.groups.join(subject, group, start))

    @rule(chosen=st.sets(subjects, min_size=1), group=groups, consumer=consumers, limit=limits)
    def deliver(self, chosen: set[str], group: str, consumer: str, limit: int) -> None:
        asked = sorted(chosen)
        found = self.both(
            lambda store: _listed(store.groups.deliver(asked, group, consumer, limit, ack_timeout=TIMEOUT))
        )
        for delivery in found or ():
            key = (delivery.entry.subject, group, delivery.entry.id)
            assert key not in self.acked, "an acked entry came back"
            before = self.handed.get(key)
            assert delivery.number == (1 if before is None else before.number + 1)
            assert before is None or before.until <= self.model.clock.now()
            self.handed[key] = delivery
        fresh = [delivery.entry.id for delivery in found or () if delivery.number == 1]
        assert fresh == sorted(fresh)

    @rule(data=st.data(), kinds=st.lists(st.sampled_from(["ack", "ack", "nak", "dead"]), min_size=1, max_size=5))
    def answer(self, data: st.DataObject, kinds: Sequence[str]) -> None:
        if not self.handed:
            return
        keys = [data.draw(st.sampled_from(sorted(self.handed))) for _ in kinds]
        answers = [_answer(kind, *key) for kind, key in zip(kinds, keys, strict=True)]
        outcomes = self.both(lambda store: _listed(store.groups.answer(answers)))
        for kind, key, outcome in zip(kinds, keys, outcomes or (), strict=outcomes is not None):
            if kind == "nak" and outcome is Outcome.DONE:
                delivery = self.handed[key]
                self.handed[key] = Delivery(delivery.entry, delivery.group, "", delivery.number, self.model.clock.now())
            elif outcome is Outcome.DONE:
                assert key not in self.acked, "acked twice"
                self.acked.add(key)

    @rule(consumer=consumers, data=st.data())
    def extend(self, consumer: str, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.handed)), max_size=3)) if self.handed else []
        deliveries = [self.handed[key] for key in dict.fromkeys(chosen)]
        mine = self.both(lambda store: _listed(store.groups.extend(consumer, deliveries, ack_timeout=TIMEOUT)))
        for delivery, held in zip(deliveries, mine or (), strict=True):
            if held:
                key = (delivery.entry.subject, delivery.group, delivery.entry.id)
                assert key not in self.acked
                until = self.model.clock.now() + TIMEOUT
                self.handed[key] = Delivery(delivery.entry, delivery.group, consumer, delivery.number, until)

    @rule(subject=subjects, group=groups, consumer=consumers, goodbye=st.booleans())
    def retire(self, subject: str, group: str, consumer: str, goodbye: bool) -> None:
        if goodbye:
            nothing = timedelta(0)
            self.both(lambda store: _listed(store.groups.deliver([subject], group, consumer, 0, ack_timeout=nothing)))
        if self.both(lambda store: store.groups.retire(subject, group, consumer)) is Outcome.DONE:
            for key, held in self.handed.items():
                if key[:2] == (subject, group) and held.consumer == consumer:
                    self.handed[key] = Delivery(held.entry, group, "", held.number, self.model.clock.now())


def _answer(kind: str, subject: str, group: str, id: EntryId) -> Ack | Nak | DeadLetter:
    if kind == "dead":
        return DeadLetter(subject, group, id, Draft(DEAD, b"letter", fields={"reason": b"why"}))
    return Ack(subject, group, id) if kind == "ack" else Nak(subject, group, id)


async def _listed(answer: Coroutine[Any, Any, Sequence[T]]) -> list[T]:
    return list(await answer)


async def _whole(store: Any, subject: str) -> list[EntryId]:
    return [entry.id for entry in (await store.streams.read(subject, START, 1_000)).items]


async def _snapshot(store: Any) -> list[object]:
    """All that can be seen."""
    return await asyncio.gather(
        *(_numbers(store, subject) for subject in (*SUBJECTS, DEAD)),
        *(_whole(store, subject) for subject in (*SUBJECTS, DEAD)),
        *(_holders(store, subject, group) for subject in SUBJECTS for group in GROUPS),
        store.streams.subjects("a.*", None, 10),
    )


async def _numbers(store: Any, subject: str) -> StreamState | None:
    """What is known of a stream, but for which server told it and what that removes by itself."""
    state = await store.streams.info(subject)
    return None if state is None else dataclasses.replace(state, history="", server_age=None)


async def _holders(store: Any, subject: str, group: str) -> list[tuple[str, int]]:
    return [(state.consumer, state.pending) for state in await store.groups.consumers(subject, group)]


class TestSqliteAgreesWithMemory(StreamsMachine.TestCase):
    settings = settings(max_examples=25, stateful_step_count=40)


class RedisMachine(StreamsMachine):
    """The same on Redis, where no fields and fields that are empty are the same entry."""

    backend = "redis"

    @rule(batch=st.lists(drafts, min_size=1, max_size=4))
    def append(self, batch: Sequence[Draft]) -> None:
        super().append([replace(draft, fields=draft.fields or None) for draft in batch])


class TestRedisAgreesWithMemory(RedisMachine.TestCase):
    settings = settings(max_examples=8, stateful_step_count=40)


class NatsMachine(LogMachine):
    """On NATS groups that are moved by marks: what its durables deliver is the server's, by the server's clock."""

    backend = "nats"

    @rule(batch=st.lists(drafts, min_size=1, max_size=4))
    def append(self, batch: Sequence[Draft]) -> None:
        super().append([replace(draft, fields=draft.fields or None) for draft in batch])

    @rule(subject=subjects, group=groups, first=st.booleans())
    def join(self, subject: str, group: str, first: bool) -> None:
        self.both(lambda store: store.groups.join(subject, group, StartAt(first=first), cursor=True))


@pytest.mark.full
class TestNatsAgreesWithMemory(NatsMachine.TestCase):
    settings = settings(max_examples=20, stateful_step_count=40)
