"""The address of a NATS and the names of our streams there: one value that can be written as a URL.

`nats://user:password@host:4222,other:4222?root=wrasse`, `tls://` for TLS from the start of the session; a token stands
where a user would (`nats://token@host`). Keys and JWTs are files, never part of a URL: `creds=` or `nkey=` names them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import quote, unquote, urlencode

from wrasse.backends.tcp import Tls as Tls, parse_address, parse_number, shown_addresses
from wrasse.backends.url_query import flag, parse_query
from wrasse.duration import format_duration, parse_duration
from wrasse.errors import ConfigError

PORT = 4222
SCHEMES = ("nats", "tls")
STORAGES = ("file", "memory")
REPLICAS_MAX = 5  # the server's own limit
_TEXTS = ("creds", "nkey", "name", "domain", "root", "streams_prefix", "storage")
_TIMES = ("dial_timeout", "read_timeout", "ping_interval")
_TLS = ("ca", "cert", "key", "verify", "tls_first")
_WHAT = "a NATS server"
_ROOT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SCHEME = re.compile(r"^(nats|tls)://")
_DOMAIN = re.compile(r"[^\s.*>\\/]{0,64}")


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """Everything needed to open a NATS and to name what is stored there."""

    nodes: tuple[tuple[str, int], ...] = (("localhost", PORT),)
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey: str = ""  # file with the seed of a user's key
    creds: str = ""  # file with a user's JWT and seed
    tls: Tls | None = None  # None: encrypted only if the server asks for it
    name: str = "wrasse"
    domain: str = ""  # of JetStream, if the server we connect to is a leaf node of the domain that has it
    root: str = "wrasse"  # the prefix of our buckets and streams
    streams_prefix: str = ""  # before every subject of a stream
    patterns: tuple[str, ...] = ()  # subjects that match one of them share one stream of JetStream
    storage: str = "file"
    replicas: int = 1
    dial_timeout: timedelta = timedelta(seconds=5)
    read_timeout: timedelta = timedelta(seconds=5)
    ping_interval: timedelta = timedelta(seconds=20)

    def __post_init__(self) -> None:
        ways = sum(1 for each in (self.username or self.password, self.token, self.nkey, self.creds) if each)
        if ways > 1:
            raise ConfigError(
                "several ways to log in to NATS at once", do="keep one of: user and password, token, nkey, creds"
            )
        if not _ROOT.fullmatch(self.root):
            raise ConfigError(
                "nats.root is not a name that NATS allows", do="use 1 to 64 letters, digits, dashes and underscores"
            )
        if not _DOMAIN.fullmatch(self.domain):
            raise ConfigError("nats.domain is not a name", do="use one word, without dots and stars")
        if self.storage not in STORAGES:
            raise ConfigError(f"nats.storage is {self.storage!r}", do=f"use one of: {', '.join(STORAGES)}")
        if not 1 <= self.replicas <= REPLICAS_MAX:
            raise ConfigError(f"nats.replicas is {self.replicas}", do=f"use 1 to {REPLICAS_MAX}, best 1, 3 or 5")
        for time in _TIMES:
            if getattr(self, time) <= timedelta(0):
                raise ConfigError(f"nats.{time} is 0: every wait would fail at once", do="use a time such as 5s")

    @property
    def where(self) -> str:
        """The address for messages to the user, without secrets."""
        return f"nats at {shown_addresses(self.nodes)}"

    @property
    def api(self) -> str:
        """The prefix of every subject of the JetStream API."""
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"

    @classmethod
    def of(cls, url: str) -> NatsOptions:
        """What the URL says. The inverse of `url`."""
        scheme, colon, rest = url.partition("://")
        if not colon or scheme not in SCHEMES:
            raise ConfigError("this is not the URL of a NATS server", do="write nats://host:4222")
        rest, _, query = rest.partition("?")
        place, _, path = rest.partition("/")
        if path:
            raise ConfigError("the URL of a NATS server has a path", do="write nats://host:4222, options behind a ?")
        login, at, hosts = place.rpartition("@")
        user, has_password, password = login.partition(":")
        by_token = bool(at) and not has_password
        given = _query(query)
        encrypted = scheme == "tls" or any(name in given for name in _TLS)
        return cls(
            nodes=parse_addresses(hosts),
            username="" if by_token else unquote(user),
            password=unquote(password),
            token=unquote(login) if by_token else "",
            tls=_tls(given) if encrypted else None,
            replicas=parse_number("replicas", given["replicas"], _WHAT) if "replicas" in given else 1,
            patterns=tuple(json.loads(given["patterns"])) if "patterns" in given else (),
            **{name: given[name] for name in _TEXTS if name in given},  # type: ignore[arg-type]  # texts, by name
            **{name: parse_duration(given[name]) for name in _TIMES if name in given},  # type: ignore[arg-type]
        )

    def url(self) -> str:
        """The URL, with its secrets: to open a connection, never for an argument, a log or an error."""
        plain = NatsOptions()
        login = quote(self.token, safe="") or quote(self.username, safe="")
        login += ":" + quote(self.password, safe="") if self.username or self.password else ""
        query = [(name, getattr(self, name)) for name in _TEXTS if getattr(self, name) != getattr(plain, name)]
        query += [(n, format_duration(getattr(self, n))) for n in _TIMES if getattr(self, n) != getattr(plain, n)]
        query += [("replicas", str(self.replicas))] if self.replicas != 1 else []
        query += [("patterns", json.dumps(self.patterns))] if self.patterns else []
        if self.tls:
            query += self.tls.query()
        place = (login + "@" if login else "") + shown_addresses(self.nodes)
        return f"{'tls' if self.tls else 'nats'}://{place}" + (f"?{urlencode(query)}" if query else "")

    def __str__(self) -> str:
        """Without secrets: safe in errors and logs."""
        return self.where


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """`host:port`, or several of them with commas."""
    parts = [_SCHEME.sub("", part.strip()) for part in text.split(",")] if text.strip() else ["localhost"]
    return tuple(parse_address(each, PORT, _WHAT) for each in parts)


def _query(query: str) -> dict[str, str]:
    return parse_query(query, {*_TEXTS, *_TIMES, *_TLS, "replicas", "patterns"}, _WHAT)


def _tls(given: dict[str, str]) -> Tls:
    return Tls(
        given.get("ca", ""),
        given.get("cert", ""),
        given.get("key", ""),
        flag(given, "verify", default=True),
        flag(given, "tls_first", default=False),
    )
