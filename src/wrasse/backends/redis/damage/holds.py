"""Held jobs from three sides: the index of takes, the holds, and the entries of the processing lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from wrasse.backends.redis.client import Link
from wrasse.backends.redis.damage.kinds import Kind
from wrasse.backends.redis.damage.reading import Seen, digest, entries, pairs, scores, takes_of, there, workers_with
from wrasse.backends.redis.damage.suspects import GROUP_MAX, Judge, Suspect
from wrasse.backends.redis.finding import find_waiting
from wrasse.backends.redis.hold_text import read_hold
from wrasse.backends.redis.keys import Keys
from wrasse.backends.redis.states import Take, text_of
from wrasse.backends.redis.wire import Word

_Place = tuple[str, bytes]  # a worker, and the digest of what it holds


class HeldJobs:
    """What one look at held jobs found."""

    def __init__(self, link: Link, keys: Keys, judge: Judge, seen: Seen) -> None:
        self.link, self.keys, self.judge, self.seen = link, keys, judge, seen
        self.token = 0  # the highest that was met
        self._takes: dict[_Place, list[bytes]] = {}
        self._ids: dict[bytes, str] = {}

    async def suspects(self) -> AsyncIterator[Suspect]:
        """All but holds without an entry, of which `without_entry` says more."""
        async for page in pairs(self.link, self.keys.held, self.seen):
            takes = [take for take, _ in page]
            for take, known in zip(takes, await there(self.link, self.keys.holds, takes), strict=True):
                self.token = max(self.token, Take.of(take).token)
                if not known:
                    yield Suspect(Kind.INDEX_WITHOUT_HOLD, text_of(take), (take,))
        async for page in pairs(self.link, self.keys.holds, self.seen, large=True):
            async for suspect in self._holds(page):
                yield suspect
        async for suspect in self._entries():
            yield suspect

    async def _holds(self, page: Sequence[tuple[bytes, bytes]]) -> AsyncIterator[Suspect]:
        takes, texts = [take for take, _ in page], [read_hold(text) for _, text in page]
        (index,) = await scores(self.link, [self.keys.held], takes)
        newest = await takes_of(self.link, self.keys, [text.id for text in texts])
        for take, text, score, other in zip(takes, texts, index, newest, strict=True):
            self.token = max(self.token, Take.of(take).token)
            if not text.readable:
                place = self.keys.shared.index(self.keys.holds) + 1
                yield Suspect(Kind.UNREADABLE, f"the hold {text_of(take)}", (place, take, text.bytes))
                continue
            known = self._takes.setdefault((text_of(text.worker), digest(text.bytes)), [])
            if take not in known:
                known.append(take)
            self._ids[take] = text_of(text.id)
            if score is None:
                yield Suspect(Kind.HOLD_WITHOUT_INDEX, text_of(text.id), (take,))
            if other is None and text.id:
                yield Suspect(Kind.WHERE_MISSING, text_of(text.id), (text.id, take))

    async def _entries(self) -> AsyncIterator[Suspect]:
        met: Counter[_Place] = Counter()
        for worker in await workers_with(self.link, self.link.options.processing_list_pattern, "list"):
            async for raw in entries(self.link, self.keys.processing(worker), self.seen):
                place = worker, digest(raw)
                takes = self._takes.get(place, [])
                met[place] += 1
                if met[place] == len(takes) + 1:
                    words: tuple[Word, ...] = (worker, raw, *takes[:GROUP_MAX])
                    yield Suspect(Kind.ENTRY_WITHOUT_HOLD, worker, words, worker, raw=raw)
        # Only those that lack an entry are of interest from here on.
        self._takes = {place: takes for place, takes in self._takes.items() if len(takes) > met[place]}

    async def without_entry(self) -> AsyncIterator[Suspect]:
        """Holds whose entries are gone, told apart by whether their jobs are anywhere else. After `suspects`."""
        missing = [
            Suspect(Kind.HOLD_LEFT_OVER, self._ids[takes[0]], tuple(takes[:GROUP_MAX]), worker)
            for (worker, _), takes in self._takes.items()
        ]
        guilty = await self.judge.guilty(missing)
        for start in range(0, len(guilty), GROUP_MAX):
            some = guilty[start : start + GROUP_MAX]
            elsewhere = await self._elsewhere(some)
            for each in some:
                yield each if each.name in elsewhere else replace(each, kind=Kind.ENTRY_LOST)

    async def _elsewhere(self, suspects: Sequence[Suspect]) -> set[str]:
        """The ids of jobs that are somewhere else. What has no id cannot be looked for: it is put back."""
        ids = [each.name for each in suspects if each.name]
        found = set(await find_waiting(self.link, self.keys, ids)) if ids else set()
        newest = await takes_of(self.link, self.keys, ids)
        own = {each.name: {*each.words} for each in suspects}
        found |= {id for id, take in zip(ids, newest, strict=True) if take is not None and take not in own[id]}
        workers = await workers_with(self.link, self.link.options.processing_list_pattern, "list")
        lists = [self.keys.completed, self.keys.dead_letter, *map(self.keys.processing, workers)]
        for each in suspects:
            if each.name not in found and await self._listed(each, lists):
                found.add(each.name)
        return found

    async def _listed(self, suspect: Suspect, lists: Sequence[str]) -> bool:
        """Whether one of these has the very bytes: another worker took them, or another program finished the job."""
        text = await self.link.ask("HGET", self.keys.holds, suspect.words[0])
        if text is None:
            return True
        raw = read_hold(text).bytes
        return any(found is not None for found in await self.link.ask_many([("LPOS", key, raw) for key in lists]))
