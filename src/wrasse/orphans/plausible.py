"""Whether a round may be believed, and whether its plan may be carried out. Pure.

A database that answers too little looks just like a store full of orphans. So the answer is compared with the last one
that was believed: before any verdict, rows, matches and references that vanished; before any removal, how much is due.
Both can be overruled once by somebody who names the round.
"""

from __future__ import annotations

from collections.abc import Mapping

from wrasse.orphans.root import Caps

Counts = Mapping[str, int]
FEW = 3  # in a small root, shares mean nothing: so many may change without suspicion


def implausible(now: Counts, last: Counts | None, caps: Caps) -> str:
    """Why no verdict may come of this round; empty if it may."""
    units = now.get("units", 0)
    if units and not now.get("rows"):
        return f"there are {units} units and no reference at all"
    if units and not now.get("protected"):
        return f"none of {now['rows']} references names any of {units} units"
    if last is None:
        return ""
    if not now.get("listed") and last.get("listed"):
        return f"the listing is empty, and had {last['listed']} objects"
    rows, before = now.get("rows", 0), last.get("rows", 0)
    if rows < caps.rows_share_min * before and before - rows > FEW:
        return f"there are {rows} references, and there were {before}"
    if _share(now) < caps.match_share_min * _share(last) and _unmatched(now) - _unmatched(last) > FEW:
        return f"{_share(now):.1%} of the references name something that is there, and it was {_share(last):.1%}"
    turned = now.get("turned_oddly", 0)
    if turned > max(caps.vanished_max, caps.vanished_share_max * last.get("protected", 0)):
        return f"{turned} of {last.get('protected', 0)} protected units have lost their owner or their only reference"
    return ""


def beyond(now: Counts, group_most: int, caps: Caps) -> str:
    """Why a plan is too large to be carried out unasked; empty if it is not."""
    due, size = now.get("due_objects", 0), now.get("due_bytes", 0)
    if due > max(caps.objects_max, caps.share_max * now.get("listed", 0)):
        return f"{due} of {now.get('listed', 0)} objects are due"
    if size > max(caps.bytes_max, caps.share_max * now.get("bytes", 0)):
        return f"{size} of {now.get('bytes', 0)} bytes are due"
    if group_most > caps.group_max:
        return f"{group_most} units of one group are due"
    return ""


def _share(counts: Counts) -> float:
    return counts.get("matched", 0) / counts["rows_live"] if counts.get("rows_live") else 0.0


def _unmatched(counts: Counts) -> int:
    return counts.get("rows_live", 0) - counts.get("matched", 0)
