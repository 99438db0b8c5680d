"""What consumers say about entries, as the script reads it: acks of one group that follow one another go together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from wrasse.backends.redis.stream_entries import draft_words
from wrasse.backends.redis.stream_keys import StreamKeys
from wrasse.backends.redis.wire import Word
from wrasse.ports.groups import Ack, Answer, DeadLetter, Nak

_MICROSECOND_OF = 1_000_000


class Answers:
    """KEYS (`names`) and ARGV (`args`) of the script for these answers."""

    __slots__ = ("_bases", "_keys", "args", "names")

    def __init__(self, answers: Sequence[Answer], keys: StreamKeys) -> None:
        self._keys = keys
        self._bases: dict[tuple[str, str], int] = {}
        self.names: list[str] = [keys.registry]
        kinds = set(map(type, answers))
        letters = (each.draft.subject for each in answers if isinstance(each, DeadLetter)) if kinds != {Ack} else ()
        subjects = dict.fromkeys(letters)
        self.args: list[Word] = [len(subjects)]
        for subject in subjects:
            self._bases["", subject] = len(self.names) + 1
            of = keys.of(subject)
            self.names += (of.log, of.facts, of.known, of.known_expiry)
            self.args += (subject, self._bases["", subject])
        self.args += self._words(answers, kinds)

    def _words(self, answers: Sequence[Answer], kinds: set[type[Answer]]) -> list[Word]:
        words: list[Word] = []
        first = answers[0]
        same = len({each.subject for each in answers}) == len({each.group for each in answers}) == 1
        if same and kinds == {Ack}:
            base = self._base(first.subject, first.group)  # as nearly always
            return ["ack", base, first.group, len(answers), *[f"{each.id.ms}-{each.id.seq}" for each in answers]]
        for (kind, subject, group), run in groupby(answers, key=lambda each: (type(each), each.subject, each.group)):
            base = self._base(subject, group)
            if kind is Ack:
                ids = [f"{each.id.ms}-{each.id.seq}" for each in run]
                words += ("ack", base, group, len(ids), *ids)
                continue
            for each in run:
                if isinstance(each, Nak):
                    words += ("nak", base, group, str(each.id), round(each.delay.total_seconds() * _MICROSECOND_OF))
                else:
                    assert isinstance(each, DeadLetter), "there are three kinds of answers"
                    words += ("dead", base, group, str(each.id), self._bases["", each.draft.subject])
                    words += draft_words(each.draft)
        return words

    def _base(self, subject: str, group: str) -> int:
        base = self._bases.get((subject, group))
        if base is None:
            base = self._bases[subject, group] = len(self.names) + 1
            of = self._keys.group(subject, group)
            self.names += (of.log, of.due, of.wake, self._keys.of(subject).facts)
        return base
