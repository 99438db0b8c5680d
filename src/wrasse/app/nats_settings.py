"""What the settings say about NATS, as the one value that opens it.

`backends.streams: nats://…` or `backends.records: nats://…` makes it a home; the section `nats:` says what a URL leaves
open: who we are, the files of keys and certificates, names, copies and times. Where both say it, the URL goes first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

from wrasse.app.setting_key import Key
from wrasse.backends.nats.options import SCHEMES, STORAGES, NatsOptions, Tls

_LOGINS = ("username", "password", "token", "nkey", "creds")
_OTHERS = ("name", "domain", "root", "storage", "replicas", "dial_timeout", "read_timeout", "ping_interval")
_ROOT = NatsOptions().root


@dataclass(frozen=True, slots=True)
class NatsTls:
    """Encryption on the way to NATS."""

    ca: Annotated[str, Key("file of the authorities that are trusted; empty: the system's")] = ""
    cert: Annotated[str, Key("file of our own certificate, where the server asks for one")] = ""
    key: Annotated[str, Key("file of its key")] = ""
    verify: Annotated[bool, Key("whether the server's certificate is checked")] = True
    first: Annotated[bool, Key("whether the server expects TLS from the first byte on (handshake_first)")] = False


@dataclass(frozen=True, slots=True)
class Nats:
    """What the URL of a NATS in backends.streams or backends.records leaves open."""

    username: Annotated[str, Key("user to log in as")] = ""
    password: Annotated[str, Key("password to log in with", secret=True)] = ""
    token: Annotated[str, Key("token to log in with", secret=True)] = ""
    creds: Annotated[str, Key("file with the JWT and the seed of a user, as nsc writes it")] = ""
    nkey: Annotated[str, Key("file with the seed of a user's key")] = ""
    name: Annotated[str, Key("what the server calls our connections")] = "wrasse"
    domain: Annotated[str, Key("domain of JetStream, where it is behind a leaf node")] = ""
    root: Annotated[str, Key("name of our bucket, and what our streams begin with")] = _ROOT
    storage: Annotated[str, Key("where what we make is stored", choices=STORAGES)] = "file"
    replicas: Annotated[int, Key("how many copies a cluster keeps of what we make: 1, 3 or 5")] = 1
    dial_timeout: Annotated[timedelta, Key("how long connecting may take")] = timedelta(seconds=5)
    read_timeout: Annotated[timedelta, Key("how long an answer may take")] = timedelta(seconds=5)
    ping_interval: Annotated[timedelta, Key("how often a quiet server is asked whether it is there")] = timedelta(
        seconds=20
    )
    tls: NatsTls = field(default_factory=NatsTls)


def is_nats(url: str) -> bool:
    """Whether the URL is that of a NATS."""
    return url.partition(":")[0] in SCHEMES


def nats_options(own: Nats, named: Callable[[str], bool], url: str, patterns: tuple[str, ...] = ()) -> NatsOptions:
    """How to reach NATS and what is called how there: by the URL, and by the section what it leaves open. `patterns`
    are those that are archived: each is one stream there."""
    base, plain = NatsOptions.of(url), NatsOptions()
    changed: dict[str, object] = {
        name: getattr(own, name)
        for name in _OTHERS
        if named(f"nats.{name}") and getattr(base, name) == getattr(plain, name)
    }
    if not any(getattr(base, name) for name in _LOGINS):
        changed |= {name: getattr(own, name) for name in _LOGINS}
    if named("nats.tls") and (base.tls is None or base.tls == Tls()):
        tls = own.tls
        changed["tls"] = Tls(tls.ca, tls.cert, tls.key, tls.verify, tls.first)
    changed["patterns"] = base.patterns or patterns
    return dataclasses.replace(base, **changed)  # type: ignore[arg-type]  # by name


def idle_nats_names(homes: Iterable[str], sources: Mapping[str, str]) -> tuple[str, ...]:
    """What somebody set for NATS while nothing lives there."""
    if any(is_nats(url) for url in homes):
        return ()
    return tuple(sorted(path for path in sources if path.startswith("nats.")))
