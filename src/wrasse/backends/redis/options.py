"""The address of one Redis and the names of its keys: one value that can be written as a URL, so that the heartbeat
child opens the same connection.

`redis://user:password@host:6379/0?root=jobqueue`, `rediss://` for TLS, several hosts with commas for a Cluster
(`cluster=true`) or for the sentinels of `redis+sentinel://…?sentinel=name`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from binascii import crc_hqx
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import parse_qsl, quote, unquote, urlencode

from wrasse.backends.tcp import Tls as Tls, parse_address, parse_number, shown_addresses
from wrasse.backends.url_query import flag, parse_query
from wrasse.duration import format_duration, parse_duration
from wrasse.errors import ConfigError

PORT, SENTINEL_PORT = 6379, 26379
SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
SLOTS = 16_384
OWN_CLIENT, REDIS_PY = "own", "redis-py"
REPLY_BYTES_MAX = 256 << 20
"""Bytes of one reply of a Redis: its own, and 128 more for each of its elements (redis.reply_bytes_max)."""
REPLY_BYTES_LEAST = 96 << 20
"""The minimum of redis.reply_bytes_max: a page of 32 MiB that ends with the largest entry, twice over."""
_TEXTS = (
    "root", "default_priority", "processing_list_pattern", "heartbeat_key_pattern", "completed_list",
    "dead_letter_list", "sentinel", "sentinel_username", "sentinel_password", "streams_prefix", "client",
    "credential_provider",
)  # fmt: skip
_NUMBERS = ("max_retries", "pool_size", "min_idle", "reply_bytes_max")
_TIMES = ("dial_timeout", "read_timeout", "write_timeout")
_TLS = ("ca", "cert", "key", "verify")
_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_WHAT = "a Redis"
_TAG = re.compile(r"\{([^}]+)\}")


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """Everything needed to open a Redis and to name its keys. Names left empty follow from the root."""

    nodes: tuple[tuple[str, int], ...] = (("localhost", PORT),)
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    tls: Tls | None = None
    cluster: bool = False
    sentinel: str = ""
    sentinel_username: str = ""
    sentinel_password: str = field(default="", repr=False)
    root: str = "jobqueue"
    queues: Mapping[str, str] = field(default_factory=dict)
    default_priority: str = "low"
    processing_list_pattern: str = ""
    heartbeat_key_pattern: str = ""
    completed_list: str = ""
    dead_letter_list: str = ""
    streams_prefix: str = ""  # before the key of every stream; on a Cluster it begins with the root
    dial_timeout: timedelta = timedelta(seconds=5)
    read_timeout: timedelta = timedelta(seconds=3)
    write_timeout: timedelta = timedelta(seconds=3)
    max_retries: int = 3
    pool_size: int = 20
    min_idle: int = 5
    reply_bytes_max: int = REPLY_BYTES_MAX
    client: str = OWN_CLIENT  # or redis-py, or module:callable that makes a client of redis-py
    credential_provider: str = ""  # module:callable that makes one of redis-py's

    def __post_init__(self) -> None:
        if self.cluster and _TAG.search(self.root) is None:
            _set(self, "root", f"{{{self.root}}}")
        if self.cluster and not self.streams_prefix:
            _set(self, "streams_prefix", f"{self.root}:stream:")
        named = {
            "processing_list_pattern": ":worker:%s:processing",
            "heartbeat_key_pattern": ":processing:worker:%s",
            "completed_list": ":completed",
            "dead_letter_list": ":dead_letter",
        }
        for name, ending in named.items():
            if not getattr(self, name):
                _set(self, name, self.root + ending)
        if self.reply_bytes_max < REPLY_BYTES_LEAST:
            raise ConfigError(
                f"redis.reply_bytes_max is {self.reply_bytes_max}: too little for a page",
                do=f"use {REPLY_BYTES_LEAST} or more",
            )
        self._check_client()
        self._check(tuple(named))

    @property
    def where(self) -> str:
        """The address for messages to the user, without secrets."""
        kind = f" by sentinel {self.sentinel}" if self.sentinel else " (cluster)" if self.cluster else ""
        return f"redis at {shown_addresses(self.nodes)}{kind}"

    @property
    def literal_queues(self) -> frozenset[str]:
        """The configured queues whose name is the key of their list."""
        return frozenset(queue for queue in self.queues.values() if ":" in queue)

    @property
    def slot(self) -> int:
        """The Cluster slot of every key of this root."""
        return key_slot(self.root)

    @classmethod
    def of(cls, url: str) -> RedisOptions:
        """The options in the URL. The inverse of `url`."""
        scheme, colon, rest = url.partition("://")
        if not colon or scheme not in SCHEMES:
            raise ConfigError("this is not the URL of a Redis", do="write redis://host:6379/0")
        rest, _, query = rest.partition("?")
        place, _, path = rest.partition("/")
        login, _, hosts = place.rpartition("@")
        user, _, password = login.partition(":")
        given = _query(query, encrypted=scheme.startswith("rediss"))
        master, _, number = path.rpartition("/")
        by_sentinel = scheme.endswith("+sentinel")
        if by_sentinel and not number.isdecimal():
            master, number = path, ""  # redis+sentinel://host/mymaster names no database
        if "@" in path or (master and not by_sentinel):
            raise ConfigError(
                "the URL of a Redis has more behind its host than a database",
                do="write redis://host:6379/0; in a password write %2F for / and %40 for @",
            )
        options = cls(
            nodes=_nodes(hosts, SENTINEL_PORT if by_sentinel else PORT),
            db=parse_number("the database", number, _WHAT) if number else 0,
            username=unquote(user),
            password=unquote(password),
            tls=given.tls if scheme.startswith("rediss") else None,
            cluster=given.cluster,
            queues=given.queues,
            **given.texts | {"sentinel": given.texts.get("sentinel", unquote(master))},  # type: ignore[arg-type]  # texts, by name
        )
        if by_sentinel and not options.sentinel:
            raise ConfigError(
                "the URL of the sentinels does not name the master they watch",
                do="write redis+sentinel://host:26379/mymaster/0",
            )
        return dataclasses.replace(options, **given.numbers, **given.times)  # type: ignore[arg-type]  # by name

    @staticmethod
    def of_query(url: str) -> Mapping[str, str]:
        """The query of the URL, by name."""
        return dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))

    def __str__(self) -> str:
        """Without secrets: safe in errors and logs."""
        return self.where

    def url(self) -> str:
        """The URL, with its secrets: for the heartbeat child's pipe, never for an argument, a log or an error."""
        plain = RedisOptions(root=self.root, cluster=self.cluster)
        login = quote(self.username, safe="") + (":" + quote(self.password, safe="") if self.password else "")
        scheme = ("rediss" if self.tls else "redis") + ("+sentinel" if self.sentinel else "")
        changed = [n for n in (*_TEXTS, *_NUMBERS, *_TIMES) if getattr(self, n) != getattr(plain, n)]
        query = [("root", self.root)] if self.root != "jobqueue" else []
        for name in changed:
            value = getattr(self, name)
            query.append((name, format_duration(value) if isinstance(value, timedelta) else str(value)))
        if self.cluster:
            query.append(("cluster", "true"))
        if self.queues:
            query.append(("queues", json.dumps(dict(self.queues))))
        if self.tls:
            query += self.tls.query()
        place = (login + "@" if login else "") + shown_addresses(self.nodes)
        return f"{scheme}://{place}/{self.db}" + (f"?{urlencode(query)}" if query else "")

    def _check_client(self) -> None:
        if self.client not in (OWN_CLIENT, REDIS_PY) and not _CALLABLE.fullmatch(self.client):
            raise ConfigError(
                f"redis.client is {self.client!r}", do=f"use {OWN_CLIENT}, {REDIS_PY}, or module:callable"
            )
        if self.credential_provider and not _CALLABLE.fullmatch(self.credential_provider):
            raise ConfigError(f"redis.credential_provider is {self.credential_provider!r}", do="write module:callable")
        if self.credential_provider and self.client != REDIS_PY:
            raise ConfigError("redis.credential_provider is a feature of redis-py", do=f"set redis.client: {REDIS_PY}")
        if self.cluster and self.client != OWN_CLIENT:
            raise ConfigError(
                "redis.client: redis-py does not support a Cluster", do=f"use redis.client: {OWN_CLIENT} for a Cluster"
            )

    def _check(self, names: tuple[str, ...]) -> None:
        for name in names[:2]:
            if getattr(self, name).replace("%%", "").count("%s") != 1:
                raise ConfigError(f"worker.{name} has no place for the worker", do=f"write {self.root}:…:%s once")
        if not self.cluster:
            if len(self.nodes) > 1 and not self.sentinel:
                raise ConfigError(
                    "redis.addr has several addresses, and neither redis.cluster nor redis.sentinel is set",
                    do="set redis.cluster: true, name the master in redis.sentinel, or keep one address",
                )
            return
        if self.db:
            raise ConfigError("a Redis Cluster has no databases but 0", do="remove redis.db")
        tag = _TAG.search(self.root)
        assert tag is not None, "a root on a Cluster has a tag"
        for name in names:
            if key_slot(getattr(self, name)) != self.slot:
                raise ConfigError(
                    f"worker.{name} is outside the hash tag {tag[0]}: on a Cluster all keys share one slot",
                    do=f"begin it with {tag[0]}",
                )
        if key_slot(self.streams_prefix) != self.slot:
            raise ConfigError(
                f"streams_prefix is outside the hash tag {tag[0]}: on a Cluster all keys share one slot",
                do=f"begin it with {tag[0]}",
            )
        for priority, queue in self.queues.items():
            if ":" in queue and key_slot(queue) != self.slot:
                raise ConfigError(
                    f"worker.queues.{priority} is outside the hash tag {tag[0]}: on a Cluster all keys share one slot",
                    do=f"write {self.root}{queue.removeprefix(tag[1])}"
                    if queue.startswith(tag[1] + ":")
                    else f"write {self.root}:queue:{queue}",
                )


def key_slot(key: str) -> int:
    """The Cluster slot of a key."""
    tag = re.search(r"\{([^}]*)\}", key)
    return crc_hqx((tag[1] if tag and tag[1] else key).encode(), 0) % SLOTS


def _set(options: RedisOptions, name: str, value: object) -> None:
    object.__setattr__(options, name, value)


@dataclass(frozen=True, slots=True)
class _Query:
    """The options of the query."""

    texts: dict[str, str]
    numbers: dict[str, int]
    times: dict[str, timedelta]
    queues: Mapping[str, str]
    cluster: bool
    tls: Tls


def _query(query: str, *, encrypted: bool) -> _Query:
    given = parse_query(query, {*_TEXTS, *_NUMBERS, *_TIMES, "queues", "cluster", *_TLS}, _WHAT)
    if not encrypted and (unused := [name for name in _TLS if name in given]):
        raise ConfigError(
            f"the URL of a Redis has {unused[0]!r}, and nothing encrypts the connection", do="write rediss://"
        )
    return _Query(
        {name: given[name] for name in _TEXTS if name in given},
        {name: parse_number(name, given[name], _WHAT) for name in _NUMBERS if name in given},
        {name: parse_duration(given[name]) for name in _TIMES if name in given},
        json.loads(given["queues"]) if "queues" in given else {},
        flag(given, "cluster", default=False),
        Tls(given.get("ca", ""), given.get("cert", ""), given.get("key", ""), flag(given, "verify", default=True)),
    )  # fmt: skip


def _nodes(hosts: str, port: int) -> tuple[tuple[str, int], ...]:
    return tuple(parse_address(each, port, _WHAT) for each in hosts.split(",")) if hosts else (("localhost", port),)


def parse_addresses(text: str, *, sentinel: bool = False) -> tuple[tuple[str, int], ...]:
    """`host:port`, or several of them with commas, as `redis.addr` has it."""
    if text and not text.strip():  # an empty one is the default; blanks are a mistake, not localhost
        raise ConfigError("the address of a Redis is blank", do="write host:6379, or leave it out")
    return _nodes(",".join(part.strip() for part in text.split(",")), SENTINEL_PORT if sentinel else PORT)
