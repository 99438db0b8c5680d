"""The names of the keys of streams. The stream of `gbe.events.audit` is the key `gbe:events:audit`, as in the seed
(docs/design/012-redis-streams.md); all other keys of streams are below the root.

On a Cluster all keys share the slot of the root, so there the key of a stream begins with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from wrasse.backends.redis.options import RedisOptions
from wrasse.errors import UsageError, WrasseError
from wrasse.ports.rules.subjects import check_subject, is_subject, redis_key, subject_of

_CACHED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class LogKeys:
    """The keys of one stream: itself, its facts, and the idempotency keys of its newest entries."""

    log: str
    facts: str
    known: str
    known_expiry: str


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """The keys of one group of one stream: the stream, batches that were delivered together and single entries, both by
    when they are due again, its consumers, and its wake list."""

    log: str
    held: str
    due: str
    consumers: str
    wake: str


class StreamKeys:
    """All keys of streams of one root."""

    __slots__ = ("_groups", "_logs", "_own", "prefix", "registry", "root", "scan")

    def __init__(self, options: RedisOptions) -> None:
        self.root = options.root
        self.prefix = options.streams_prefix
        self.registry = f"{self.root}:streams"
        self.scan = f"{self.root}:streams:scan"
        self._own = f"{self.root}:"
        self._logs: dict[str, LogKeys] = {}
        self._groups: dict[tuple[str, str], GroupKeys] = {}

    def of(self, subject: str) -> LogKeys:
        """The keys of this stream."""
        found = self._logs.get(subject)
        if found is None:
            log = self.prefix + redis_key(subject)
            if not self.prefix and (log == self.root or log.startswith(self._own)):
                raise UsageError(
                    f"the subject {subject!r} would be a key that wrasse uses itself",
                    do=f"begin it with another token than {self.root!r}",
                )
            beside = f"{self.root}:streams:{subject}"
            found = LogKeys(log, beside, f"{beside}:keys", f"{beside}:keys:expiry")
            if len(self._logs) < _CACHED_MAX:  # a cache, not a registry
                self._logs[subject] = found
        return found

    def group(self, subject: str, group: str) -> GroupKeys:
        """The keys of this group. A subject has no colon, so no two groups share a key."""
        found = self._groups.get((subject, group))
        if found is None:
            beside = f"{self.root}:streams:{subject}:group:{group}"
            log = self.of(subject).log
            found = GroupKeys(log, f"{beside}:held", f"{beside}:due", f"{beside}:consumers", f"{beside}:wake")
            if len(self._groups) < _CACHED_MAX:
                self._groups[subject, group] = found
        return found

    def registered(self, name: bytes) -> str | None:
        """The subject of this name in the registry; None if another program added it."""
        try:
            subject = name.decode()
            self.of(subject)
        except (UnicodeDecodeError, UsageError):
            return None
        return subject if is_subject(subject) else None

    def subject(self, key: bytes) -> str | None:
        """The subject of the stream with this key; None if no subject has it."""
        try:
            text = key.decode()
        except UnicodeDecodeError:
            return None
        if not text.startswith(self.prefix) or "." in text[len(self.prefix) :]:
            return None
        subject = subject_of(text[len(self.prefix) :])
        try:
            check_subject(subject)
            return subject if self.of(subject).log == text else None
        except WrasseError:
            return None
