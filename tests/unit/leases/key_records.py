"""Records of keys as hypothesis draws them: any that the rules can make."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st
from msgspec.structs import replace

from wrasse.leases.lease import AcquireRequest, KeyRecord, Lease, Staged, StateObject, Terms, presented_lease

START = datetime(2026, 1, 1, tzinfo=UTC)
SPANS = st.integers(0, 7_200_000).map(lambda ms: timedelta(milliseconds=ms))
MOMENTS = SPANS.map(lambda span: START + span)
IDS = st.sampled_from(["me", "other", "third"])
TOKENS = st.integers(1, 50)
TERMS = st.builds(Terms, *(st.sampled_from([timedelta(0), timedelta(seconds=span)]) for span in (1, 15)))
STATES = st.builds(
    StateObject, st.sampled_from(["s1", "s2", "s3"]), st.just("v"), st.sampled_from(["e1", "e2"]), st.just(3)
)
GRANTS = st.builds(Lease, IDS, IDS, TOKENS, MOMENTS, st.sampled_from(["t1", "t2"]), st.booleans())
FLAGS = st.none() | st.booleans()
STAGED = st.builds(Staged, st.just("t1"), st.integers(1, 9), st.none() | STATES, st.booleans(), FLAGS)
ASKED = st.builds(AcquireRequest, IDS, SPANS, st.just("new"), st.just("t1"), st.booleans())
HELD = st.builds(presented_lease, st.just("default"), st.just("k"), IDS, TOKENS, st.sampled_from(["t1", "t2", ""]))


@st.composite
def metas(draw: st.DrawFn, *, held: bool = False, staging: bool = False) -> KeyRecord:
    """A record: what is staged is staged by a holder, for a version to come, and no grant is above the token."""
    grant = draw(GRANTS if held or staging else st.none() | GRANTS)
    token = max(draw(TOKENS), 0 if grant is None else grant.token)
    version = draw(st.integers(0, 5))
    staged = draw(STAGED if staging else st.none() | STAGED) if grant is not None else None
    if staged is not None:
        state = None if staged.same else staged.state
        staged = replace(staged, version=version + staged.version, state=state)
    return KeyRecord(
        token, grant, version, draw(st.none() | STATES) if version else None, staged, draw(st.booleans()), START,
        draw(st.none() | MOMENTS), tuple(draw(st.lists(TOKENS, max_size=4, unique=True))), draw(st.integers(0, 5)),
    )  # fmt: skip
