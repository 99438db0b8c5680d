"""A census of the groups of all streams: consumers that may be dead, and groups with problems.

`Census` reads only. One page covers a bounded number of streams. Consumers and groups in order are not listed; if there
is nothing else, one `Alive` is returned for the page. `PlainSurvey` reads the streams one by one, for backends that
have no survey of their own.

`IdleObservations` stores which consumers were found idle: consumers of other programs are only removed if two
observations show no activity in between. An observation is one stored record, so that any process can make the second
one: otherwise a sweep that is started anew for each run, or more often than `gone_for`, would never remove a consumer.
There is at most one per consumer; it is deleted when the consumer was active or is gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from wrasse.bounded import decoded
from wrasse.ports.groups import ConsumerState, Groups
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page, no_cursor, pages
from wrasse.ports.records import Collection, Record, Records
from wrasse.ports.streams import GroupState, Streams, StreamState, Surveys
from wrasse.streams.alerts import Alerts, SentAlert

IDLE_OBSERVATIONS = Collection.named("streams/looks")
STREAMS = 200  # per page
INIT_GROUP = "_init"  # a group that the origin creates and never reads
_PAGE = 1_000
_PAGES_MAX = 10  # of observations: later ones are read once these are gone
_SAME = timedelta(seconds=1)  # tolerance of two observations of one time: it is reported as an age

Name = tuple[str, str, str]  # subject, group, consumer


@dataclass(frozen=True, slots=True)
class IdleObservation:
    """A consumer that was found idle: when, since when, and the record."""

    at: datetime
    seen_at: datetime
    name: Name = ("", "", "")
    key: str = ""
    version: str = ""

    def fits(self, state: ConsumerState) -> bool:
        """Whether the consumer has done nothing since."""
        return state.seen_at - self.seen_at <= _SAME


class _StoredObservation(msgspec.Struct, frozen=True):
    name: Name
    at: datetime
    seen_at: datetime


_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(_StoredObservation).decode


def name_of(state: ConsumerState) -> Name:
    """The name of a consumer's observation."""
    return state.subject, state.group, state.consumer


class IdleObservations:
    """The first observation of each idle consumer."""

    __slots__ = ("_records",)

    def __init__(self, records: Records) -> None:
        self._records = records

    async def known(self) -> Mapping[Name, IdleObservation]:
        """All stored observations."""
        found: dict[Name, IdleObservation] = {}
        async for page in pages(lambda after: self._records.page("", after, _PAGE), most=_PAGES_MAX):
            observations = [_decode_observation(record) for record in page]
            found |= {each.name: each for each in observations if each is not None}
        return found

    async def note(self, state: ConsumerState, at: datetime, instead_of: IdleObservation | None = None) -> Outcome:
        """Stores a first observation; `conflict` if another process stored one meanwhile."""
        name = name_of(state)
        value = _ENCODE(_StoredObservation(name, at, state.seen_at))
        if instead_of is not None:
            return (await self._records.put(instead_of.key, value, at=instead_of.version)).outcome
        key = hashlib.sha256("\n".join(name).encode()).hexdigest()[:40]
        return (await self._records.create(key, value)).outcome

    async def forget(self, observation: IdleObservation) -> Outcome:
        """Deletes an observation."""
        return (await self._records.delete(observation.key, at=observation.version)).outcome


def _decode_observation(record: Record) -> IdleObservation | None:
    try:
        stored = decoded(_DECODE, record.value)
    except ValueError:
        return None  # written by another version of wrasse: that consumer is not touched
    return IdleObservation(stored.at, stored.seen_at, stored.name, record.key, record.version)


@dataclass(frozen=True, slots=True)
class SilentConsumer:
    """A consumer that may be dead, and its first observation; or an older one, after which it was active."""

    state: ConsumerState
    first: IdleObservation | None
    older: IdleObservation | None = None


@dataclass(frozen=True, slots=True)
class Troubled:
    """A group with pending entries, lost entries, or an alert that was sent; and until when one of its consumers counts
    as alive."""

    subject: str
    group: GroupState
    alive_until: datetime | None
    told: tuple[SentAlert, ...]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """An alert about a group that no longer exists."""

    told: SentAlert


@dataclass(frozen=True, slots=True)
class ConsumerChanged:
    """An observation of a consumer that was active again, or is gone."""

    observation: IdleObservation


@dataclass(frozen=True, slots=True)
class Alive:
    """Streams up to this one are in order. `served`: the server itself releases the entries of a dead consumer."""

    subject: str
    served: bool = False


Suspect = SilentConsumer | Troubled | Forgotten | ConsumerChanged | Alive


class _Place(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Where a page continues: after these streams, and in the next one after this consumer of this group."""

    after: str = ""
    group: str = ""
    last: bool = False  # whether the group itself was returned, which comes after its consumers
    consumer: str = ""


@dataclass(frozen=True, slots=True)
class Census:
    """Reads the groups of one backend."""

    surveys: Surveys
    groups: Groups
    alerts: Alerts
    idle_observations: IdleObservations
    knows_holders: bool = True  # as the backend declares it

    async def page(self, after: str | None, limit: int, ignore: Sequence[str]) -> Page[Suspect]:
        """The next suspects."""
        begun = place = _Place() if after is None else _parse(after)
        page = await self.surveys.survey(">", place.after or None, STREAMS)
        told, idle_observations = _by_stream(await self.alerts.told()), await self.idle_observations.known()
        silent: set[Name] = set()
        found: list[tuple[_Place, Suspect]] = []
        for state, cursor in zip(page.items, page.cursors, strict=True):
            async for suspect in self._of(state, told.get(state.subject, ()), page.at, ignore, idle_observations):
                if isinstance(suspect, SilentConsumer):
                    silent.add(name_of(suspect.state))
                here = _place(place.after, suspect)
                if here <= place:
                    continue
                if len(found) == limit:
                    return _suspect_page(found, page.at, more=True)
                found.append((here, suspect))
            place = _Place(cursor)
        room = limit - len(found)
        over = [*_forgotten(page, told, begun), *_outdated(page, idle_observations, silent, begun)]
        found += [(place, each) for each in over[:room]]  # the others in the next run
        if not found and len(page):
            found.append((place, Alive(page.items[-1].subject, served=not self.knows_holders)))
        if found:
            found[-1] = (place, found[-1][1])
        return _suspect_page(found, page.at, more=page.more)

    async def _of(
        self,
        state: StreamState,
        told: Sequence[SentAlert],
        at: datetime,
        ignore: Sequence[str],
        idle_observations: Mapping[Name, IdleObservation],
    ) -> AsyncIterator[SilentConsumer | Troubled]:
        for group in state.groups:
            if group.name == INIT_GROUP or group.name in ignore:
                continue
            asks = self.knows_holders and group.consumers
            known = await self.groups.consumers(state.subject, group.name) if asks else ()
            for each in sorted(known, key=lambda consumer: consumer.consumer):
                if each.until <= at:
                    observation = idle_observations.get(name_of(each))
                    fits = observation is not None and observation.fits(each)
                    yield SilentConsumer(each, observation if fits else None, None if fits else observation)
            about = tuple(each for each in told if each.name.split("\n")[1] == group.name)
            alive = max((each.until for each in known), default=None)
            waits = not self.knows_holders and group.consumers > 0
            unread = group.pending > 0 and not waits and (alive is None or alive <= at)
            if unread or group.lost or about:
                yield Troubled(state.subject, group, alive, about)


def _place(after: str, suspect: SilentConsumer | Troubled) -> _Place:
    if isinstance(suspect, Troubled):
        return _Place(after, suspect.group.name, True)
    return _Place(after, suspect.state.group, False, suspect.state.consumer)


def _by_stream(told: Mapping[str, SentAlert]) -> dict[str, tuple[SentAlert, ...]]:
    found: dict[str, tuple[SentAlert, ...]] = {}
    for each in told.values():
        found[each.stream] = (*found.get(each.stream, ()), each)
    return found


def _forgotten(page: Page[StreamState], told: Mapping[str, Sequence[SentAlert]], place: _Place) -> list[Suspect]:
    there = {(state.subject, group.name) for state in page for group in state.groups}
    return [
        Forgotten(each)
        for subject, alerts in told.items()
        for each in alerts
        if _within(page, place, subject) and (subject, each.name.split("\n")[1]) not in there
    ]


def _outdated(
    page: Page[StreamState], idle_observations: Mapping[Name, IdleObservation], silent: Set[Name], place: _Place
) -> list[Suspect]:
    return [
        ConsumerChanged(observation)
        for name, observation in idle_observations.items()
        if name not in silent and _within(page, place, name[0])
    ]


def _within(page: Page[StreamState], place: _Place, subject: str) -> bool:
    """Whether this page would include the stream if it existed."""
    return subject > place.after and (not page.more or subject <= page.cursors[-1])


def _suspect_page(found: Sequence[tuple[_Place, Suspect]], at: datetime, *, more: bool) -> Page[Suspect]:
    return Page(tuple(s for _, s in found), tuple(_text(place) for place, _ in found), at, more)


def _text(place: _Place) -> str:
    return msgspec.json.encode(place).decode()


def _parse(text: str) -> _Place:
    try:
        return msgspec.json.decode(text, type=_Place)
    except msgspec.MsgspecError:
        raise no_cursor(text) from None


class PlainSurvey:
    """Queries each stream separately."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def survey(self, pattern: str, after: str | None, limit: int) -> Page[StreamState]:
        """See the port."""
        names = await self._streams.subjects(pattern, after, limit)
        states = [(name, await self._streams.info(name)) for name in names]
        found = [state for _, state in states if state is not None]
        if not found and names.more:
            return await self.survey(pattern, names.cursor, limit)
        items = tuple(found)
        # The last cursor is that of the last name, so that a deleted stream is not queried again.
        cursors = [state.subject for state in items]
        if names.more and items:
            cursors[-1] = names.cursors[-1]
        return Page(items, tuple(cursors), names.at, names.more)
