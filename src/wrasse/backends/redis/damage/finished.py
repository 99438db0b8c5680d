"""Finished jobs: their texts, the two indexes, the list of dead letters, and the way to a job by its id."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

from wrasse.backends.redis.client import Link
from wrasse.backends.redis.damage.kinds import Kind
from wrasse.backends.redis.damage.reading import Seen, digest, pairs, scores, takes_of, there
from wrasse.backends.redis.damage.suspects import GROUP_MAX, Judge, Suspect
from wrasse.backends.redis.dead_list import dead_letters
from wrasse.backends.redis.hold_text import read_finished
from wrasse.backends.redis.job_json import decode
from wrasse.backends.redis.keys import Keys
from wrasse.backends.redis.states import Take, text_of
from wrasse.backends.redis.wire import Word
from wrasse.ports.jobs import Place


class FinishedJobs:
    """What one look at finished jobs found."""

    def __init__(self, link: Link, keys: Keys, judge: Judge, seen: Seen) -> None:
        self.link, self.keys, self.judge, self.seen = link, keys, judge, seen
        self.token = 0  # the highest that was met
        self._dead: dict[bytes, list[bytes]] = {}  # digest of a dead job to its takes

    async def suspects(self) -> AsyncIterator[Suspect]:
        """Texts without index, and indexes without text."""
        async for page in pairs(self.link, self.keys.finished, self.seen, large=True):
            takes = [take for take, _ in page]
            texts = [read_finished(text) for _, text in page]
            done, dead = await scores(self.link, [self.keys.done, self.keys.dead], takes)
            newest = await takes_of(self.link, self.keys, [text.id for text in texts])
            for take, text, *known, way in zip(takes, texts, done, dead, newest, strict=True):
                self.token = max(self.token, Take.of(take).token)
                if text.place is Place.DEAD:
                    self._met(digest(text.bytes), take)
                if known == [None, None]:
                    yield Suspect(Kind.FINISHED_WITHOUT_INDEX, text_of(text.id), (take,))
                if way is None and text.id:
                    yield Suspect(Kind.WHERE_MISSING, text_of(text.id), (text.id, take))
        for index in (self.keys.done, self.keys.dead):
            async for page in pairs(self.link, index, self.seen):
                takes = [take for take, _ in page]
                for take, known_here in zip(takes, await there(self.link, self.keys.finished, takes), strict=True):
                    if not known_here:
                        yield Suspect(Kind.INDEX_WITHOUT_FINISHED, text_of(take), (take,))

    def _met(self, mark: bytes, take: bytes) -> None:
        takes = self._dead.setdefault(mark, [])
        if take not in takes:
            takes.append(take)

    async def letters(self) -> AsyncIterator[Suspect]:
        """The list of dead letters beside the index. After `suspects`."""
        met: Counter[bytes] = Counter()
        new: list[Suspect] = []
        place = 0
        async for raw in dead_letters(self.link, self.keys):
            self.seen(1)
            mark, place = digest(raw), place + 1
            takes = self._dead.get(mark, [])
            met[mark] += 1
            if met[mark] > len(takes):
                wire = decode(raw)
                name = "" if wire is None else wire.id
                words: tuple[Word, ...] = (raw, place, met[mark], *takes[:GROUP_MAX])
                new.append(Suspect(Kind.DEAD_ENTRY_WITHOUT_INDEX, name, words, raw=raw, place=place))
        for mark, takes in self._dead.items():
            if len(takes) > met[mark]:
                yield Suspect(Kind.DEAD_WITHOUT_ENTRY, text_of(takes[0]), tuple(takes[:GROUP_MAX]))
        # An index entry of which nothing is known stands for a letter, and is damage of its own kind.
        for each in new[self.judge.tally(Kind.INDEX_WITHOUT_FINISHED).count :] if not self.judge.repair else new:
            yield each

    async def ways(self) -> AsyncIterator[Suspect]:
        """Ids that lead nowhere."""
        async for page in pairs(self.link, self.keys.where, self.seen):
            takes = [take for _, take in page]
            held, done, dead = await scores(self.link, [self.keys.held, self.keys.done, self.keys.dead], takes)
            for (id, take), *known in zip(page, held, done, dead, strict=True):
                if known == [None, None, None]:
                    yield Suspect(Kind.WHERE_LEFT_OVER, text_of(id), (id, take))
