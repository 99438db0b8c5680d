"""Settings of leases: the API, care about clocks, and the idle sweeps in the words of their design document.

Those words and the settings of the sweeps themselves name the same numbers; the latter go before the former.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from urllib.parse import urlsplit

from wrasse.config.setting_key import setting
from wrasse.leases.names import BadName, checked_namespace

ZERO = timedelta(0)
JANITOR_MIN, JANITOR_MAX = timedelta(minutes=1), timedelta(hours=1)


class Role(StrEnum):
    """What the owner of a token may do; each includes the ones before it."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


TOKEN_KEYS = "token or token_file, role, namespaces"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """One token of the lease API, known by its name."""

    token: str = setting("", "what the caller shows", secret=True)
    token_file: str = setting("", "file that holds it instead")
    role: str = setting(Role.WRITER, "what it may do: read, change, or everything", choices=tuple(Role))
    namespaces: tuple[str, ...] = setting((), "where it may do that; empty: everywhere")


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Leases and state: who may ask for them over HTTP, and when they are tidied."""

    listen: str = setting("127.0.0.1:9342", "address of the lease API, which the role leases serves")
    token: str = setting("", "what callers show as Authorization: Bearer …, for everything", secret=True)
    tokens: Mapping[str, TokenSettings] = setting(
        {}, f"more tokens, with rights of their own: a map from a name to {TOKEN_KEYS}"
    )
    insecure: bool = setting(False, "whether tokens may go beyond this machine without TLS, for all to read")
    tls_cert: str = setting("", "file of the server's certificate")
    tls_key: str = setting("", "file of its key")
    tls_ca: str = setting("", "file of the authorities whose certificates callers may show instead of a token")
    server: str = setting(
        "",
        "URL of a lease API that programs ask for leases, such as http://locks:9342; without it: backends.records",
        filled=True,
    )
    server_ca: str = setting("", "file of the authorities that such a server's certificate is checked by")
    client_cert: str = setting("", "file of the certificate that programs show to such a server")
    client_key: str = setting("", "file of its key")
    margin: timedelta = setting(
        ZERO, "how far clocks may be off: contenders wait that much longer, holders stop that much earlier"
    )
    lock_delay: timedelta = setting(ZERO, "how long a key stays closed after a lease that ended by itself")
    ttl_max: timedelta = setting(timedelta(minutes=30), "how long a lease may last without renewal")
    txn_replay_interval: timedelta = setting(
        timedelta(seconds=5),
        "how often, amid traffic, transactions that a crash left open are finished; 0s: only when idle",
    )
    sweeper_interval: timedelta = setting(
        timedelta(minutes=5), "how often the idle sweeps run; sweeps.expired_leases.interval"
    )
    idle_sweep_grace: timedelta = setting(
        timedelta(minutes=5), "how long no lease may have been asked for before they start"
    )
    idle_sweep_max_ops: int = setting(1_000, "how many actions one run of them may take together")
    idle_sweep_max_runtime: timedelta = setting(timedelta(seconds=30), "how long one run may take")
    idle_sweep_op_delay: timedelta = setting(timedelta(milliseconds=100), "rest after every entry")
    disk_retention: timedelta = setting(
        ZERO, "how long a key that nobody touches is kept, with its state; 0s: for ever; not on s3://"
    )
    disk_janitor_interval: timedelta = setting(
        ZERO, "how often aged keys are looked for; 0s: half of disk_retention, at least 1m and at most 1h"
    )


def followed(own: LeaseSettings) -> Mapping[str, Mapping[str, object]]:
    """What the settings of sweeps are unless they are set themselves."""
    every = own.disk_janitor_interval or min(max(own.disk_retention / 2, JANITOR_MIN), JANITOR_MAX)
    idle = {
        "interval": own.sweeper_interval,
        "actions_max": own.idle_sweep_max_ops,
        "runtime_max": own.idle_sweep_max_runtime,
        "pause": own.idle_sweep_op_delay,
    }
    return {
        "expired_leases": idle,
        "open_transactions": idle,
        "spent_decisions": idle,
        "aged_records": {"interval": every, "enabled": own.disk_retention > ZERO, "retention": own.disk_retention},
    }


def lease_rules(own: LeaseSettings, records: str) -> Iterator[tuple[bool, str, str, str]]:
    """What is right: whether it is, of which setting, what is wrong, and what to write."""
    waits = ("margin", "lock_delay", "txn_replay_interval", "idle_sweep_grace", "idle_sweep_op_delay")
    for name in (*waits, "disk_retention"):
        yield getattr(own, name) >= ZERO, name, "is negative", "use 0s or more"
    for name in ("ttl_max", "sweeper_interval", "idle_sweep_max_runtime"):
        yield getattr(own, name) > ZERO, name, "is 0", "use a time such as 5m"
    yield own.disk_janitor_interval >= ZERO, "disk_janitor_interval", "is negative", "use a time such as 1h"
    yield (
        not own.server or _is_server(own.server),
        "server",
        "is no URL of a lease API",
        "use one such as http://127.0.0.1:9342, without path or login",
    )
    yield from _token_rules(own)
    yield own.idle_sweep_max_ops >= 1, "idle_sweep_max_ops", f"is {own.idle_sweep_max_ops}", "use 1 or more"
    yield (
        own.disk_retention == ZERO or not records.startswith("s3:"),
        "disk_retention",
        "is set, and keys live in a bucket, where looking for aged ones would list all of them again and again",
        "remove it, or keep keys elsewhere",
    )


def _is_server(url: str) -> bool:
    """Whether every call can be made there: calls have paths of their own, and the token is the only login."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    named = parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and "@" not in parts.netloc
    bare = parts.path in ("", "/") and not parts.query and not parts.fragment
    return named and bare and url.isascii() and url.isprintable() and " " not in url


def _token_rules(own: LeaseSettings) -> Iterator[tuple[bool, str, str, str]]:
    shown = [own.token, *(each.token for each in own.tokens.values())]
    written = [each for each in shown if each]
    yield all(map(_TOKEN.fullmatch, written)), "tokens", "has one that no header can carry", "use ASCII without spaces"
    yield len(set(written)) == len(written), "tokens", "has the same one under two names", "make another"
    for name, each in own.tokens.items():
        yield bool(_NAME.fullmatch(name)), "tokens", f"has the name {name[:64]!r}", "use letters, digits, dots, dashes"
        yield (
            bool(each.token) != bool(each.token_file),
            "tokens",
            f"has {name[:64]!r} with {'both' if each.token else 'neither'} of token and token_file",
            "write one of them",
        )
        for namespace in each.namespaces:
            try:
                right = checked_namespace(namespace) == namespace
            except BadName:
                right = False
            yield right, "tokens", f"has {name[:64]!r} with the namespace {namespace[:40]!r}", "use lower case names"
