"""Where dead letters go: one stream per domain, `<root>._deadletter.<domain>`.

The domain of a subject is its second token (`gbe.tasks.email.queue` is of `tasks`), or its only one. The rules for
subjects and patterns themselves are in `wrasse.ports.subjects`, since every backend keeps them too. Pure.
"""

from __future__ import annotations

from wrasse.ports.subjects import check_subject

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
