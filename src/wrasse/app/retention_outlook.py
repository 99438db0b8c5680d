"""What is known about one stream and what retention will do to it: for `wrasse explain`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from wrasse.app.ago import ago
from wrasse.app.config import Config
from wrasse.app.retention_building import retention
from wrasse.app.wiring import Stores
from wrasse.clock import from_micros
from wrasse.duration import format_duration
from wrasse.errors import UsageError
from wrasse.ports.streams import StreamState
from wrasse.ports.subjects import check_subject
from wrasse.streams.retention import Bound, Stand, judge


@dataclass(frozen=True, slots=True)
class StreamOutlook:
    """A stream, what bounds it, and what happens next."""

    state: StreamState
    bound: Bound | None
    next: tuple[str, ...]

    def plain(self) -> dict[str, object]:
        """The same for programs."""
        state, bound = self.state, self.bound
        return {
            "subject": state.subject,
            "entries": state.length,
            "first_at": _moment(state),
            "rule": None if bound is None else bound.rule.pattern,
            "kept_seconds": None if bound is None else bound.rule.age,
            "protected_by": [] if bound is None else list(bound.protect),
            "server_age_seconds": None if state.server_age is None else state.server_age.age,
        }

    def pairs(self) -> list[tuple[str, object]]:
        """The same for people."""
        state, bound, first = self.state, self.bound, _moment(self.state)
        groups = ", ".join(each.name for each in state.groups)
        rows: list[tuple[str, object]] = [
            ("stream", state.subject),
            ("entries", state.length),
            ("first", "none" if first is None else ago(first, state.at)),
            ("kept", "for ever" if bound is None else f"{format_duration(bound.rule.age)} by {bound.rule.pattern}"),
            ("groups", groups or "none"),
        ]
        if state.server_age is not None and state.server_age.age is not None:
            whose = "as retention says" if state.server_age.ours else "as somebody else told it"
            rows.append(("kept by the server", f"{format_duration(state.server_age.age)}, {whose}"))
        # Where nothing is trimmed, nothing needs to be protected.
        return rows if bound is None else [*rows, ("protected by", ", ".join(bound.protect) or "no group")]


async def stream_outlook(config: Config, stores: Stores, id: str) -> StreamOutlook | None:
    """What is known about the stream of this name; None if there is none."""
    try:
        check_subject(id)
    except UsageError:
        return None
    store = await stores.open_streams(config.homes.streams)
    state = await store.streams.info(id)
    if state is None:
        return None
    bound = retention(config.settings).of(id)
    return StreamOutlook(state, bound, tuple(next_lines(state, bound)))


def next_lines(state: StreamState, bound: Bound | None) -> Iterator[str]:
    """What happens to a stream next. Pure."""
    if bound is None:
        yield "nothing: no rule of `retention` is about it, so it is never trimmed"
        return
    found = judge(state, bound, state.at)
    first = _moment(state)
    match found.stand:
        case Stand.YOUNG if first is None:
            yield "nothing: it is empty"
        case Stand.YOUNG:
            assert first is not None, "an empty stream was told before"
            yield f"its first entry is old enough {ago(first + bound.rule.age, state.at)}"
        case Stand.MISSING:
            yield f"nothing is trimmed: the group {found.group!r} protects it, and does not exist"
        case Stand.HELD:
            yield f"nothing is trimmed until the group {found.group!r} has acked its first entry"
        case Stand.DUE:
            loses = bound.rule.allow_data_loss and bound.protect
            yield "the next run of aged_entries trims it" + (", acked or not: the rule allows that" if loses else "")


def _moment(state: StreamState) -> datetime | None:
    return None if state.first is None else from_micros(state.first.ms * 1_000)
