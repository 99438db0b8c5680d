"""Takes that may be asked again: what each request began to claim, for as long as a request is remembered. Only in this
process: whoever restarts has no request left to ask again."""

from __future__ import annotations

from collections import deque

from wrasse.clock import Clock
from wrasse.jobs.streamed_takes import Claim
from wrasse.ports.jobs import REQUESTS_KEPT


class TakeRequests:
    """The claims of takes, by request id."""

    __slots__ = ("_claims", "_clock", "_order")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._claims: dict[str, Claim] = {}
        self._order: deque[tuple[float, str]] = deque()

    def known(self, request: str) -> Claim | None:
        """What this request began, if it is not too long ago."""
        horizon = self._clock.monotonic() - REQUESTS_KEPT.total_seconds()
        while self._order and self._order[0][0] < horizon:
            self._claims.pop(self._order.popleft()[1], None)
        return self._claims.get(request)

    def keep(self, request: str, claim: Claim) -> None:
        """Remembers what a request begins."""
        self._claims[request] = claim
        self._order.append((self._clock.monotonic(), request))

    def forget(self, request: str) -> None:
        """It got nothing: asking again is asking anew."""
        self._claims.pop(request, None)
