"""Dead letters: how a message is set aside, and how it is read again.

The original bytes are unchanged; the fields `reason`, `stream`, `entry_id`, `group` and `deliveries` are added. Fields
of an entry that a foreign program wrote are kept as `raw.<name>`. A message too large for an entry is only referred to
by its id. Pure.

There is one stream of dead letters per domain, `<root>._deadletter.<domain>`. The domain of a subject is its second
token (`gbe.tasks.email.queue` is of `tasks`), or its only one. The rules for subjects and patterns are in
`wrasse.ports.rules.subjects`, since every backend uses them.
"""

from __future__ import annotations

from wrasse.errors import StoreBroken
from wrasse.ports.groups import DeadLetter, Delivery
from wrasse.ports.rules.subjects import check_subject
from wrasse.ports.streams import TOO_LONG, Draft, Entry, is_appendable
from wrasse.streams.envelope import Envelope, decode

ROOT = "gbe"
_DEAD = "_deadletter"


def domain(subject: str) -> str:
    """The token of a subject that names a part of the system."""
    tokens = subject.split(".", 2)
    return tokens[1] if len(tokens) > 1 else tokens[0]


def dead_letter_subject(subject: str, root: str = ROOT) -> str:
    """The stream of dead letters for this subject."""
    to = f"{root}.{_DEAD}.{domain(subject)}"
    check_subject(to)
    return to


def is_dead_letter_subject(subject: str, root: str = ROOT) -> bool:
    """Whether messages of this subject are dead letters; they are not set aside twice."""
    return subject.startswith(f"{root}.{_DEAD}.")


REASON_CHARS_MAX = 2_000


def dead_letter(delivery: Delivery, reason: str, *, deliveries: int, root: str = ROOT) -> DeadLetter:
    """The answer that sets a delivery aside."""
    entry = delivery.entry
    fields = {
        "reason": reason[:REASON_CHARS_MAX].encode("utf-8", "backslashreplace"),
        "stream": entry.subject.encode(),
        "entry_id": str(entry.id).encode(),
        "group": delivery.group.encode(),
        "deliveries": str(deliveries).encode(),
    }
    raw = {f"raw.{name}": value for name, value in (entry.fields or {}).items()}
    draft = Draft(dead_letter_subject(entry.subject, root), entry.body, fields=raw | fields)
    letter = DeadLetter(entry.subject, delivery.group, entry.id, draft)
    return letter if is_appendable(draft) else named_only(letter)


def named_only(letter: DeadLetter) -> DeadLetter:
    """The same dead letter without the original bytes, which stay in its stream until trimmed; for one that is too
    large."""
    fields = {name: value for name, value in (letter.draft.fields or {}).items() if not name.startswith("raw.")}
    fields["reason"] += b" (too large to repeat here: see entry_id in stream)"
    return DeadLetter(letter.subject, letter.group, letter.id, Draft(letter.draft.subject, b"", fields=fields))


def envelope_in(entry: Entry, root: str = ROOT) -> Envelope:
    """The message in an entry; StoreBroken if there is none. For a dead letter without an envelope, its bytes."""
    if entry.fields and TOO_LONG in entry.fields:
        size = entry.fields[TOO_LONG].decode()
        raise StoreBroken(
            f"an entry of {size} bytes, larger than a reply may be",
            do="raise redis.reply_bytes_max, or publish less",
        )
    try:
        return decode(entry.body)
    except StoreBroken:
        if is_dead_letter_subject(entry.subject, root) and entry.fields and "reason" in entry.fields:
            return Envelope("", entry.subject, entry.id.ms, entry.body)
        raise
