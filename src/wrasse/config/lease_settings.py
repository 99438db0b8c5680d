"""Settings of leases: the API, tolerances for clocks, and the idle sweeps with the names of their design document.

The design document's names and the settings of the sweeps name the same numbers; the latter have precedence.
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
TOKEN_KEYS = "token or token_file, role, namespaces"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOKEN = re.compile(r"[\x21-\x7e]+")


class Role(StrEnum):
    """What a token permits; each role includes the previous ones."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """One token of the lease API, known by its name."""

    token: str = setting("", "the token that the caller sends", secret=True)
    token_file: str = setting("", "file that contains it instead")
    role: str = setting(Role.WRITER, "what it permits: read, change, or everything", choices=tuple(Role))
    namespaces: tuple[str, ...] = setting((), "the namespaces it permits; empty: all")


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Leases and state: access over HTTP, and cleanup."""

    listen: str = setting("127.0.0.1:9342", "address of the lease API, which the role leases serves")
    token: str = setting("", "token that callers send as Authorization: Bearer …, for everything", secret=True)
    tokens: Mapping[str, TokenSettings] = setting(
        {}, f"more tokens, with rights of their own: a map from a name to {TOKEN_KEYS}"
    )
    insecure: bool = setting(False, "whether tokens may be sent beyond this machine without TLS")
    tls_cert: str = setting("", "file of the server's certificate")
    tls_key: str = setting("", "file of its key")
    tls_ca: str = setting("", "file of the authorities whose certificates callers may present instead of a token")
    server: str = setting(
        "",
        "URL of the lease API that programs use, such as http://locks:9342; without it: backends.records",
        filled=True,
    )
    server_ca: str = setting("", "file of the authorities for that server's certificate")
    client_cert: str = setting("", "file of the certificate that programs present to that server")
    client_key: str = setting("", "file of its key")
    margin: timedelta = setting(
        ZERO, "tolerance for clock differences: other acquirers wait that much longer, holders stop that much earlier"
    )
    lock_delay: timedelta = setting(ZERO, "how long a key stays closed after a lease that expired")
    ttl_max: timedelta = setting(timedelta(minutes=30), "how long a lease may last without renewal")
    txn_replay_interval: timedelta = setting(
        timedelta(seconds=5),
        "how often transactions that a crash left open are finished during traffic; 0s: only when idle",
    )
    sweeper_interval: timedelta = setting(
        timedelta(minutes=5), "how often the idle sweeps run; sweeps.expired_leases.interval"
    )
    idle_sweep_grace: timedelta = setting(timedelta(minutes=5), "how long leases must be idle before they start")
    idle_sweep_max_ops: int = setting(1_000, "maximum actions of one run of them together")
    idle_sweep_max_runtime: timedelta = setting(timedelta(seconds=30), "maximum duration of one run")
    idle_sweep_op_delay: timedelta = setting(timedelta(milliseconds=100), "pause after every entry")
    disk_retention: timedelta = setting(
        ZERO, "how long an unused key is kept, with its state; 0s: for ever; not on s3://"
    )
    disk_janitor_interval: timedelta = setting(
        ZERO, "how often aged keys are searched for; 0s: half of disk_retention, at least 1m and at most 1h"
    )


def followed(own: LeaseSettings) -> Mapping[str, Mapping[str, object]]:
    """Defaults of sweep settings that follow from these settings."""
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
    """The rules: whether each holds, for which setting, what is wrong, and what to write."""
    waits = ("margin", "lock_delay", "txn_replay_interval", "idle_sweep_grace", "idle_sweep_op_delay")
    for name in (*waits, "disk_retention"):
        yield getattr(own, name) >= ZERO, name, "is negative", "use 0s or more"
    for name in ("ttl_max", "sweeper_interval", "idle_sweep_max_runtime"):
        yield getattr(own, name) > ZERO, name, "is 0", "use a time such as 5m"
    yield own.disk_janitor_interval >= ZERO, "disk_janitor_interval", "is negative", "use a time such as 1h"
    yield (
        not own.server or _is_server(own.server),
        "server",
        "is not the URL of a lease API",
        "use one such as http://127.0.0.1:9342, without path or login",
    )
    yield from _token_rules(own)
    yield own.idle_sweep_max_ops >= 1, "idle_sweep_max_ops", f"is {own.idle_sweep_max_ops}", "use 1 or more"
    yield (
        own.disk_retention == ZERO or not records.startswith("s3:"),
        "disk_retention",
        "is set, and keys are in a bucket, where each search for aged ones would list all keys",
        "remove it, or keep keys elsewhere",
    )


def _is_server(url: str) -> bool:
    """Whether calls can be made there: calls have their own paths, and the token is the only login."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    named = parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and "@" not in parts.netloc
    bare = parts.path in ("", "/") and not parts.query and not parts.fragment
    return named and bare and url.isascii() and url.isprintable() and " " not in url


def _token_rules(own: LeaseSettings) -> Iterator[tuple[bool, str, str, str]]:
    tokens = [own.token, *(each.token for each in own.tokens.values())]
    written = [each for each in tokens if each]
    yield (
        all(map(_TOKEN.fullmatch, written)),
        "tokens",
        "has one that is invalid in a header",
        "use ASCII without spaces",
    )
    yield len(set(written)) == len(written), "tokens", "has the same one under two names", "create another"
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
