"""What pauses a run before its next batch. A guard says why in one line; one that cannot tell pauses it too."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Guard(ABC):
    """Something that may pause a run. Most remember nothing and have nothing to add: that is what they inherit."""

    __slots__ = ()
    name: str  # a short word: it labels a metric

    @abstractmethod
    async def pause_reason(self) -> str | None:
        """Why the run must not go on now, or None."""

    async def foreseen(self) -> str | None:
        """What `pause_reason` would say, for a dry run: nothing is taken."""
        return await self.pause_reason()

    async def release(self) -> None:  # noqa: B027  # most hold nothing
        """A run is over: what `pause_reason` took for it is given back."""

    def recall(self, memory: str | None) -> None:  # noqa: B027  # most have nothing to take up
        """A run begins. Takes up what the last one, here or elsewhere, remembered; None if that was nothing."""

    def memory(self) -> str | None:
        """What the next run should know; the engine keeps it with the sweep's state."""
        return None

    def note(self) -> str:
        """What there is to say although the run goes on."""
        return ""
