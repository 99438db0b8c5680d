"""The name of every key; no other module builds key names. The layouts are docs/design/008-redis-layout.md, and for
streams docs/design/012-redis-streams.md.

Scripts find shared keys at fixed positions: `enqueue` are KEYS[1] to KEYS[12] of a script that enqueues jobs, `shared`
(which begins with the same twelve) KEYS[1] to KEYS[21] of a script that claims, settles or moves them. The other keys
of a script follow.

The stream of `gbe.events.audit` is the key `gbe:events:audit`, as in the seed; all other keys of streams are below the
root. On a Cluster all keys share the slot of the root, so there the key of a stream begins with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wrasse.backends.redis.options import RedisOptions
from wrasse.errors import UsageError, WrasseError
from wrasse.ports.rules.subjects import check_subject, is_subject, redis_key, subject_of

_CACHED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue."""

    name: str
    list: str
    delayed: str
    wake: str
    rate: str


class RedisKeys:
    """All keys of one root."""

    __slots__ = (
        "_options", "_queues", "completed", "counts", "dead", "dead_letter", "done", "enqueue", "finished", "groups",
        "groups_expiry", "held", "holds", "ids", "ids_expiry", "progress", "queues", "requests", "root", "shared",
        "strangers", "strays", "token", "uniques", "uniques_expiry", "where", "workers", "workers_info",
    )  # fmt: skip

    def __init__(self, options: RedisOptions) -> None:
        root = options.root
        self._options = options
        self._queues: dict[str, QueueKeys] = {}
        self.root = root
        self.token = f"{root}:token"
        self.ids, self.ids_expiry = f"{root}:ids", f"{root}:ids:expiry"
        self.uniques, self.uniques_expiry = f"{root}:uniques", f"{root}:uniques:expiry"
        self.groups, self.groups_expiry = f"{root}:groups", f"{root}:groups:expiry"
        self.where, self.queues = f"{root}:where", f"{root}:queues"
        self.requests = tuple(f"{root}:requests:{n}" for n in range(3))
        self.held, self.holds = f"{root}:held", f"{root}:holds"
        self.done, self.dead, self.finished = f"{root}:done", f"{root}:dead", f"{root}:finished"
        self.counts, self.progress = f"{root}:counts", f"{root}:progress"
        self.completed, self.dead_letter = options.completed_list, options.dead_letter_list
        self.workers, self.workers_info = f"{root}:workers", f"{root}:workers:info"
        self.strays, self.strangers = f"{root}:strays", f"{root}:strays:workers"
        self.enqueue = (
            self.token, self.ids, self.ids_expiry, self.uniques, self.uniques_expiry, self.groups,
            self.groups_expiry, self.where, self.queues, *self.requests,
        )  # fmt: skip
        self.shared = (
            *self.enqueue, self.held, self.holds, self.done, self.dead, self.finished, self.counts, self.completed,
            self.dead_letter, self.progress,
        )  # fmt: skip

    def queue(self, name: str) -> QueueKeys:
        """The keys of this queue. A name that begins with the root is the key of its list itself, and so is a value of
        `worker.queues` with a colon in it: other programs push there."""
        found = self._queues.get(name)
        if found is None:
            literal = name.startswith(f"{self.root}:") or name in self._options.literal_queues
            key = name if literal else f"{self.root}:queue:{name}"
            if key in self.shared or key in (self.workers, self.workers_info):
                raise UsageError(f"the queue {name!r} is a key that wrasse keeps", do="choose another name")
            found = QueueKeys(name, key, f"{key}:delayed", f"{key}:wake", f"{key}:rate")
            if len(self._queues) < _CACHED_MAX:  # a cache, not a registry
                self._queues[name] = found
        return found

    def processing(self, worker: str) -> str:
        """The list of this worker's running jobs."""
        return _filled(self._options.processing_list_pattern, worker)

    def heartbeat(self, worker: str) -> str:
        """The key that exists while this worker lives and runs jobs."""
        return _filled(self._options.heartbeat_key_pattern, worker)


def _filled(pattern: str, worker: str) -> str:
    """Formats like printf with `%s` and `%%`; other characters after a percent sign are literal."""
    before, _, after = pattern.replace("%%", "\0").partition("%s")
    return f"{before}{worker}{after}".replace("\0", "%")


def pattern_glob(pattern: str) -> str:
    """A glob for SCAN: the pattern with any worker."""
    return "*".join(map(literal_glob, _ends(pattern)))


def literal_glob(text: str) -> str:
    """A glob for SCAN: this text and no other."""
    return "".join(f"\\{sign}" if sign in "*?[]^\\" else sign for sign in text)


def workers_in(names: Sequence[bytes], pattern: str) -> Iterator[str]:
    """The worker of each key, by the pattern that names it. A key that is not UTF-8 is no worker's."""
    before, after = _ends(pattern)
    for raw in names:
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            continue
        if len(name) > len(before) + len(after) and name.startswith(before) and name.endswith(after):
            yield name[len(before) : len(name) - len(after)]


def _ends(pattern: str) -> tuple[str, str]:
    """The text before and after the worker."""
    before, after = (part.replace("\0", "%") for part in pattern.replace("%%", "\0").split("%s"))
    return before, after


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

    __slots__ = ("_groups", "_logs", "_own", "prefix", "registry", "root")

    def __init__(self, options: RedisOptions) -> None:
        self.root = options.root
        self.prefix = options.streams_prefix
        self.registry = f"{self.root}:streams"
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
