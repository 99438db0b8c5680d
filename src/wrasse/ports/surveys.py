"""Surveys: many streams looked at together, for sweeps that look at all of them.

Promise. What `Streams.subjects` and `Streams.info` say of each, at about one moment; a stream that vanished in between
is left out. A backend may have it; `streams/survey.py` asks one by one where it has not.

Costs. A few round trips a page, flat in the number of its streams.
"""

from __future__ import annotations

from typing import Protocol

from wrasse.ports.page import Page
from wrasse.ports.streams import StreamState


class Surveys(Protocol):
    """The port."""

    async def survey(self, pattern: str, after: str | None, limit: int) -> Page[StreamState]:
        """Streams whose subjects match, in byte order, each with its groups. The cursors are subjects."""
        ...
