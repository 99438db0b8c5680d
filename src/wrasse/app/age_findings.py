"""What `wrasse doctor` says of streams whose server removes entries by age on its own. Looks only.

A sweep that is disabled ends no age, and nobody would see that the server goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wrasse.app.retention_building import retention, surveys_of
from wrasse.app.settings import Settings
from wrasse.ports.backend import StreamStore
from wrasse.ports.finding import OK, WARN, Finding
from wrasse.ports.streams import StreamState
from wrasse.streams.retention import Retention, server_age_for
from wrasse.sweeps.aged_entries import AgedEntries

LOOK = 1_000  # streams; the sweep sees all
_NAMED = 3
_BY_HAND = "nats stream edit --max-age=0"


async def age_findings(settings: Settings, store: StreamStore) -> Sequence[Finding]:
    """The findings about a backend of streams; none where servers remove nothing by themselves."""
    if store.ages is None:
        return ()
    page = await surveys_of(store).survey(">", None, LOOK)
    return tuple(judged(page.items, retention(settings), enabled=settings.sweeps[AgedEntries.name].enabled))


def judged(streams: Sequence[StreamState], rules: Retention, *, enabled: bool) -> Iterator[Finding]:
    """What is to be said of these streams. Pure."""
    aged = [state for state in streams if state.server_age is not None and state.server_age.age is not None]
    ours = [state for state in aged if state.server_age is not None and state.server_age.ours]
    if unasked := [state for state in aged if state not in ours and _protected(state, rules)]:
        what = f"the server removes entries by age that an archiver or workers may still need: {_names(unasked)}"
        yield Finding("retention", WARN, what, f"take the maximal age away: {_BY_HAND}")
    if ours and not enabled:
        what = f"aged_entries is disabled, and the server goes on removing entries by age: {_names(ours)}"
        do = f"take their rules away and run `wrasse sweep aged-entries` once, or {_BY_HAND}"
        yield Finding("retention", WARN, what, do)
    elif other := [state for state in ours if _is_other(state, rules)]:
        what = f"the server keeps streams to another age than retention says: {_names(other)}"
        yield Finding("retention", WARN, what, "run `wrasse sweep aged-entries`, or wait for its next run")
    elif ours:
        yield Finding("retention", OK, f"the server itself keeps {len(ours)} streams to their age")


def _protected(state: StreamState, rules: Retention) -> bool:
    bound = rules.of(state.subject)
    return bool(rules.protecting(state.subject, None if bound is None else bound.rule))


def _is_other(state: StreamState, rules: Retention) -> bool:
    assert state.server_age is not None, "asked of those that have an age"
    return state.server_age.age != server_age_for(state, rules.of(state.subject))


def _names(streams: Sequence[StreamState]) -> str:
    more = f" and {len(streams) - _NAMED} more" if len(streams) > _NAMED else ""
    return ", ".join(state.subject for state in streams[:_NAMED]) + more
