"""The keys that this process has seen last, so that a holder and the next one in line need not read before they write.

What is remembered may be out of date at any moment: every write names the version it builds on, so a memory that is
wrong costs one more read and nothing else. Bounded: the key that was longest not touched is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict

from wrasse.leases.meta import Kept

KNOWN_MAX = 10_000


class Known:
    """Records by key, the newest that this process has seen."""

    __slots__ = ("_kept", "_max")

    def __init__(self, keys_max: int = KNOWN_MAX) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._max = keys_max

    def get(self, key: str) -> Kept | None:
        """What was seen last."""
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
        return kept

    def note(self, key: str, kept: Kept) -> None:
        """This is what the key's record says now."""
        self._kept[key] = kept
        self._kept.move_to_end(key)
        if len(self._kept) > self._max:
            self._kept.popitem(last=False)

    def forget(self, key: str) -> None:
        """What was seen is out of date."""
        self._kept.pop(key, None)
