"""Dead letters: what is written when a message is set aside, and how it is read back.

The original bytes stay as they were; beside them stand `reason`, `stream`, `entry_id`, `group` and `deliveries`. Of an
entry that a foreign program wrote, each field stands beside them as `raw.<name>`. One that is larger than an entry may
be is named only. Pure.

Where dead letters go: one stream per domain, `<root>._deadletter.<domain>`.

The domain of a subject is its second token (`gbe.tasks.email.queue` is of `tasks`), or its only one. The rules for
subjects and patterns themselves are in `wrasse.ports.rules.subjects`, since every backend keeps them too. Pure.
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
    """The token that says what part of a system a subject belongs to."""
    tokens = subject.split(".", 2)
    return tokens[1] if len(tokens) > 1 else tokens[0]


def dead_letter_subject(subject: str, root: str = ROOT) -> str:
    """The stream for dead letters of this one."""
    to = f"{root}.{_DEAD}.{domain(subject)}"
    check_subject(to)
    return to


def is_dead_letter_subject(subject: str, root: str = ROOT) -> bool:
    """Whether what arrives here has been set aside already; it is not set aside twice."""
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
    """The same without what the entry held, for one that is too large: its stream has that until it is trimmed."""
    fields = {name: value for name, value in (letter.draft.fields or {}).items() if not name.startswith("raw.")}
    fields["reason"] += b" (too large to repeat here: see entry_id in stream)"
    return DeadLetter(letter.subject, letter.group, letter.id, Draft(letter.draft.subject, b"", fields=fields))


def envelope_in(entry: Entry, root: str = ROOT) -> Envelope:
    """The message in an entry; StoreBroken if there is none. A dead letter without an envelope is its bytes."""
    if entry.fields and TOO_LONG in entry.fields:
        size = entry.fields[TOO_LONG].decode()
        raise StoreBroken(
            f"an entry of {size} bytes, which no reply can hold", do="raise redis.reply_bytes_max, or publish less"
        )
    try:
        return decode(entry.body)
    except StoreBroken:
        if is_dead_letter_subject(entry.subject, root) and entry.fields and "reason" in entry.fields:
            return Envelope("", entry.subject, entry.id.ms, entry.body)
        raise
