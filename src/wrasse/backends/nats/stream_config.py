"""The configuration of the JetStream streams that wrasse makes, and how it recognises them.

A stream of ours is marked in its metadata (servers from 2.10 keep it) with the root that made it and the maximum age
that wrasse gave it. A stream without this mark, or with another age than the marked one, belongs to others and stays as
it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from wrasse.backends.nats.client.transport import ServerInfo
from wrasse.backends.nats.layout import NatsNames
from wrasse.ports.server_ages import ServerAge

DEDUP_SECONDS = 120
MADE_BY = "wrasse.made_by"
AGE = "wrasse.max_age"
_NANO = 1_000_000_000
_MICRO = 1_000
_MICROSECOND = timedelta(microseconds=1)
_SERVERS = "_nats."  # metadata keys that the server itself adds

Config = Mapping[str, object]


def new_config(layout: NatsNames, name: str, takes: str, server: ServerInfo) -> dict[str, object]:
    """A new stream of ours. Without a maximum age: it is unknown who will read it."""
    config: dict[str, object] = {
        "name": name,
        "subjects": [takes],
        "retention": "limits",
        "storage": layout.storage,
        "num_replicas": layout.replicas,
        "discard": "new",
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "allow_direct": True,
        "duplicate_window": DEDUP_SECONDS * _NANO,
    }
    if server.at_least(2, 10):
        config["metadata"] = {MADE_BY: layout.root}
    if server.at_least(2, 12):
        config["allow_atomic"] = True
    return config


def is_ours(config: Config, layout: NatsNames) -> bool:
    """Whether this root made the stream."""
    return _metadata(config).get(MADE_BY) == layout.root


def server_age(config: Config, layout: NatsNames) -> ServerAge:
    """What the server removes by age, and who set the age."""
    set_to = _max_age(config)
    ours = is_ours(config, layout) and (not set_to or _metadata(config).get(AGE) == str(set_to))
    age = timedelta(microseconds=set_to // _MICRO) if set_to else None
    # The server allows no age below its deduplication window.
    return ServerAge(age, ours, least=timedelta(seconds=DEDUP_SECONDS))


def with_age(config: Config, age: timedelta | None) -> dict[str, object]:
    """The same stream with this age, marked as ours."""
    nanos = 0 if age is None else age // _MICROSECOND * _MICRO
    kept = {name: value for name, value in _metadata(config).items() if name != AGE and not name.startswith(_SERVERS)}
    return {**config, "max_age": nanos, "metadata": {**kept, AGE: str(nanos)} if nanos else kept}


def _metadata(config: Config) -> Mapping[str, object]:
    found = config.get("metadata")
    return found if isinstance(found, dict) else {}


def _max_age(config: Config) -> int:
    found = config.get("max_age")
    return found if isinstance(found, int) else 0
