"""The state of one group: what its ledger comes to, command by command. Pure, and the same for whoever reads it.

What is pending is kept in runs: entries that follow each other and were handed out together. A run is cut when its
parts go different ways, so the work follows the number of hand-outs and not that of the entries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wrasse.backends.nats.ledger_entries import (
    ACK,
    Back,
    Command,
    Deliver,
    Extend,
    Gone,
    Join,
    Mark,
    Retire,
    Settle,
    Skip,
)
from wrasse.ports.streams import EntryId

RUNS_MAX = 20_000  # beyond it nothing new is handed out; what is due comes back all the same
_ANSWERS_KEPT = 64
_NEVER = 1 << 62

Handed = tuple[int, int, int, int]  # a span and the number of its delivery


@dataclass(frozen=True, slots=True)
class Run:
    """Pending entries that follow each other. Nobody holds them while `consumer` is empty."""

    seq: int
    count: int
    ms: int
    consumer: str
    number: int
    until: int

    @property
    def end(self) -> int:
        """The sequence behind the last."""
        return self.seq + self.count

    def part(self, seq: int, end: int) -> Run:
        """The piece between these."""
        return self if (seq, end) == (self.seq, self.end) else replace(self, seq=seq, count=end - seq)


class LedgerState:
    """Where a group stands."""

    def __init__(self) -> None:
        self.joined = False
        self.delivered = EntryId(0, 0)
        self.start_ms = 0
        self.consumers: dict[str, tuple[int, int]] = {}  # when seen, and until when alive
        self.runs: list[Run] = []
        self.answers: OrderedDict[str, Any] = OrderedDict()  # to the last questions, by their names
        self._soonest = _NEVER

    @property
    def floor(self) -> EntryId:
        """Everything at or below is acked."""
        return EntryId(self.runs[0].ms, self.runs[0].seq).previous if self.runs else self.delivered

    @property
    def floor_seq(self) -> int:
        """The same as a sequence."""
        return self.runs[0].seq - 1 if self.runs else self.delivered.seq

    @property
    def pending(self) -> int:
        """How many entries are handed out or wait to come back."""
        return sum(run.count for run in self.runs)

    def held(self, consumer: str) -> int:
        """How many of them this consumer holds."""
        return sum(run.count for run in self.runs if run.consumer == consumer)

    def due(self, at: int, limit: int) -> list[Run]:
        """What is to be delivered again, longest overdue first, as many entries as asked for."""
        if at < self._soonest or not limit:
            return []
        late = sorted((run for run in self.runs if run.until <= at), key=lambda run: (run.until, run.seq))
        if not late:
            self._soonest = self.next_due()
        found: list[Run] = []
        for run in late:
            if limit <= 0:
                break
            found.append(run.part(run.seq, min(run.end, run.seq + limit)))
            limit -= run.count
        return found

    def next_due(self) -> int:
        """When the next pending entry is to be delivered again."""
        return min((run.until for run in self.runs), default=_NEVER)

    def apply(self, name: str, command: Command) -> Any:
        """Changes the state; gives the answer, and keeps it for whoever asks again under the same name."""
        if name in self.answers:
            return self.answers[name]
        answer = self._answer(command)
        self.answers[name] = answer
        if len(self.answers) > _ANSWERS_KEPT:
            self.answers.popitem(last=False)
        return answer

    def below(self, seq: int) -> list[Run]:
        """What is pending below this sequence."""
        return [run.part(run.seq, min(run.end, seq)) for run in self.runs if run.seq < seq]

    def find(self, id: EntryId) -> Run | None:
        """The run in which an entry is pending."""
        place = bisect_right(self.runs, id.seq, key=_seq) - 1
        run = self.runs[place] if place >= 0 else None
        return run if run is not None and id.seq < run.end and run.ms == id.ms else None

    def _answer(self, command: Command) -> Any:
        match command:
            case Join():
                return self._join(command)
            case Deliver():
                return self._deliver(command)
            case Extend():
                return self._extend(command)
            case Settle():
                return [self._settle(command.at, *answer) for answer in command.answers]
            case Mark():
                return self._mark(command)
            case Retire():
                return self._retire(command)
            case Back():
                return self._back(command)
            case Skip():
                if command.seq > self.delivered.seq:
                    self.delivered = EntryId(command.ms, command.seq)
                self.start_ms = 0 if command.done else self.start_ms
                return True
            case Gone():
                for seq, count in command.spans:
                    self._cut(seq, seq + count)
                return True

    def _join(self, command: Join) -> bool:
        if self.joined:
            return False
        self.joined = True
        self.delivered = EntryId(command.ms, command.seq)
        self.start_ms = command.start_ms
        return True

    def _deliver(self, command: Deliver) -> list[Handed]:
        self.consumers[command.consumer] = (command.at, command.until)
        handed: list[Handed] = []
        for part in sorted(self.due(command.at, command.limit), key=lambda run: run.seq):
            self._cut(part.seq, part.end)
            run = replace(part, consumer=command.consumer, number=part.number + 1, until=command.until)
            self._put(run)
            handed.append((run.seq, run.count, run.ms, run.number))
        left = command.limit - sum(span[1] for span in handed)
        for seq, count, ms in command.new if len(self.runs) < RUNS_MAX else ():
            first, end = max(seq, self.delivered.seq + 1), seq + count
            end = min(end, first + left)
            if end <= first:
                continue
            self._put(Run(first, end - first, ms, command.consumer, 1, command.until))
            self.delivered = EntryId(ms, end - 1)
            handed.append((first, end - first, ms, 1))
            left -= end - first
        return handed

    def _extend(self, command: Extend) -> list[bool]:
        mine = []
        for seq, count, ms, number in command.held:
            for each in range(seq, seq + count):
                held = False
                for run in self._cut(each, each + 1):
                    held = (run.ms, run.consumer, run.number) == (ms, command.consumer, number)
                    self._put(replace(run, until=command.until) if held else run)
                mine.append(held)
        if command.held and command.consumer in self.consumers:
            # One that is busy asks for nothing new, and is alive all the same.
            self.consumers[command.consumer] = (command.at, command.until)
        return mine

    def _settle(self, at: int, kind: int, seq: int, count: int, ms: int, delay: int) -> int | str:
        """How many were pending: all of them, or which, as a row of 1 and 0."""
        found = self._cut(seq, seq + count)
        done = [run for run in found if run.ms == ms]
        for run in found:
            if run.ms != ms:
                self._put(run)
            elif kind != ACK:
                self._put(replace(run, consumer="", until=at + delay))
        if sum(run.count for run in done) == count:
            return count
        row = bytearray(b"0" * count)
        for run in done:
            row[run.seq - seq : run.end - seq] = b"1" * run.count
        return row.decode()

    def _mark(self, command: Mark) -> bool:
        if not self.joined or self.floor_seq >= command.seq:
            return False
        if command.seq > self.delivered.seq:
            self.delivered = EntryId(command.ms, command.seq)
        self._cut(0, command.seq + 1)
        return True

    def _retire(self, command: Retire) -> bool:
        seen = self.consumers.get(command.consumer)
        if seen is None or seen[1] > command.at:
            return False
        for run in [run for run in self.runs if run.consumer == command.consumer]:
            self._cut(run.seq, run.end)
            self._put(replace(run, consumer="", until=command.at))
        del self.consumers[command.consumer]
        return True

    def _back(self, command: Back) -> bool:
        for seq, count, ms, number in command.handed:
            for run in self._cut(seq, seq + count):
                mine = (run.ms, run.consumer, run.number) == (ms, command.consumer, number)
                self._put(replace(run, consumer="", number=number - 1, until=command.at) if mine else run)
        return True

    def _cut(self, seq: int, end: int) -> list[Run]:
        """Takes the pending entries between these out, as runs of their own."""
        first = max(bisect_right(self.runs, seq, key=_seq) - 1, 0)
        while first < len(self.runs) and self.runs[first].end <= seq:
            first += 1
        out: list[Run] = []
        stay: list[Run] = []
        last = first
        while last < len(self.runs) and self.runs[last].seq < end:
            run = self.runs[last]
            if run.seq < seq:
                stay.append(run.part(run.seq, seq))
            out.append(run.part(max(run.seq, seq), min(run.end, end)))
            if run.end > end:
                stay.append(run.part(end, run.end))
            last += 1
        self.runs[first:last] = stay
        return out

    def _put(self, run: Run) -> None:
        if not self.runs or self.runs[-1].seq < run.seq:
            self.runs.append(run)
        else:
            self.runs.insert(bisect_right(self.runs, run.seq, key=_seq), run)
        self._soonest = min(self._soonest, run.until)

    def snapshot(self) -> dict[str, object]:
        """All of it, for `restored`."""
        names = {name: place for place, name in enumerate(dict.fromkeys(run.consumer for run in self.runs))}
        return {
            "joined": self.joined,
            "delivered": [self.delivered.ms, self.delivered.seq],
            "start": self.start_ms,
            "consumers": {name: list(seen) for name, seen in self.consumers.items()},
            "names": list(names),
            "runs": [[r.seq, r.count, r.ms, names[r.consumer], r.number, r.until] for r in self.runs],
            "answers": list(self.answers.items()),
        }

    @classmethod
    def restored(cls, told: dict[str, Any]) -> LedgerState:
        """What `snapshot` gave."""
        state = cls()
        state.joined = bool(told["joined"])
        state.delivered = EntryId(*told["delivered"])
        state.start_ms = int(told["start"])
        state.consumers = {name: (seen, until) for name, (seen, until) in told["consumers"].items()}
        names: Sequence[str] = told["names"]
        state.runs = [Run(seq, n, ms, names[who], number, until) for seq, n, ms, who, number, until in told["runs"]]
        state.answers = OrderedDict(told["answers"])
        state._soonest = state.next_due()
        return state


def _seq(run: Run) -> int:
    return run.seq


def spans(places: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Sequences with the ms of their ids as spans, in their order."""
    found: list[tuple[int, int, int]] = []
    first = last = at = -2
    for seq, ms in places:
        if seq == last + 1 and ms == at:
            last = seq
            continue
        if last >= 0:
            found.append((first, last - first + 1, at))
        first, last, at = seq, seq, ms
    if last >= 0:
        found.append((first, last - first + 1, at))
    return found
