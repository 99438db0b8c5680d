"""docs/reference/limits.md: every limit on what comes from outside, with the value that the code has now.

A chapter names modules. Every public constant `…_MAX` or `MAX_…` in them is a row, and each constant beside it that has
a docstring; its meaning is that docstring, else what MEANINGS says, else the comment behind it. One without a meaning
fails the build of the page.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tools.docs.markdown import code, page, table
from wrasse.duration import format_duration

SOURCES = Path(__file__).resolve().parents[2] / "src" / "wrasse"
CHAPTERS: dict[str, tuple[str, ...]] = {
    "Jobs": ("ports.jobs", "bounded", "jobs.http_handler"),
    "Streams and archives": (
        "ports.streams", "ports.rules.subjects", "ports.groups",
        "streams.envelope", "archives.codec",
    ),
    "Records and objects": ("ports.records", "ports.objects", "backends.directory.names"),
    "Leases": (
        "leases.names", "leases.leases", "leases.attachments", "leases.transactions.states", "leases.client",
        "leases.attachments_client",
    ),
    "HTTP servers: status page and lease API": (
        "web.listener", "lease_server.request_parsing", "lease_server.queues", "lease_server.leases", "web.server",
    ),
    "What a Redis may send": (
        "backends.redis.options",
        "backends.page_loop",
        "backends.redis.client.transport",
        "backends.redis.jobs.lists",
        "backends.redis.replies",
    ),
    "What a NATS server may send": ("backends.nats.client.transport",),
    "What an S3 store may send": (
        "backends.s3.transport", "backends.s3.xml", "backends.s3.object_listing", "backends.s3.objects",
        "backends.s3.client", "backends.s3.connect",
    ),
    "Settings, logs and errors": ("config.yaml_file", "config.redaction", "observability.logs"),
}  # fmt: skip
MEANINGS = {
    "config.yaml_file:BYTES_MAX": "bytes of a settings file",
    "observability.logs:LINES_MAX": "log lines with the same message in a second; the rest is counted",
    "observability.logs:MESSAGES_MAX": "different messages that are told apart within a second",
    "bounded:INTEGER_MAX": "a number in a job or record: what JSON, Lua and floats carry exactly",
    "bounded:DURATION_MAX": "a duration",
    "jobs.http_handler:REDIRECTS_MAX": "redirects that a job posted to a URL follows",
    "jobs.http_handler:REFUSAL_BYTES_MAX": "bytes that are read of what a URL answers to a refused job",
    "jobs.http_handler:RETRY_AFTER_MAX": "the longest Retry-After of a URL that is kept to",
    "leases.attachments_client:SENDS_MAX": "times that an attachment is sent",
    "leases.attachments:ATTACHMENTS_MAX": "attachments of one key",
    "leases.leases:NAMESPACES_MAX": "namespaces that a process remembers; any number may exist",
    "ports.groups:DELIVERIES_MAX": "deliveries in one call",
    "ports.streams:FIELDS_BYTES_MAX": "bytes of the fields of an entry beside its body",
    "lease_server.leases:KEYS_MAX": "keys in one answer of a listing",
    "lease_server.queues:PAGE_MAX": "messages that a call may ask for",
    "lease_server.queues:QUEUE_CHARS_MAX": "characters of the name of a queue",
    "lease_server.leases:TTL_SECONDS_MAX": "seconds that a call may ask a lease for",
    "observability.logs:VALUE_CHARS_MAX": "characters of a message or a value in a log line",
    "web.server:CLIENTS_MAX": "browsers that follow the status page live",
    "backends.directory.names:NAME_MAX": "bytes of one file name; longer keys are cut into directories",
    "backends.s3.client:PAGE_MAX": "objects on one page of a listing",
    "backends.s3.transport:CONNECT_MAX": "seconds to connect",
    "backends.s3.transport:CONNECTIONS_MAX": "connections to one store",
    "backends.s3.transport:PAUSE_MAX": "seconds between two tries of a request",
    "bounded:DURATION_SECONDS_MAX": "the same in seconds",
    "leases.attachments:BYTES_MAX": "bytes of one attachment",
    "leases.attachments:NAME_BYTES_MAX": "bytes of its name",
    "leases.leases:TTL_MAX": "how long a lease may be asked for, unless `leases.ttl_max` says otherwise",
    "leases.names:KEY_CHARS_MAX": "characters of a key",
    "leases.names:NAMESPACE_CHARS_MAX": "characters of a namespace",
    "leases.transactions.states:PARTICIPANTS_MAX": "keys of one transaction",
    "ports.groups:GROUP_BYTES_MAX": "bytes of the name of a group",
    "ports.jobs:ID_BYTES_MAX": "bytes of the id of a job, and of the name of its queue, kind, priority or group",
    "ports.jobs:HEADERS_BYTES_MAX": "bytes of the headers of a job, names and values, as they are in JSON",
    "ports.jobs:PAYLOAD_BYTES_MAX": "bytes of a payload, and of a result",
    "ports.jobs:ERROR_CHARS_MAX": "characters kept of what a handler's error says",
    "ports.objects:DELETES_MAX": "objects deleted in one call",
    "ports.objects:METADATA_BYTES_MAX": "bytes of the metadata of an object",
    "ports.objects:OBJECT_KEY_BYTES_MAX": "bytes of the key of an object",
    "ports.records:KEY_BYTES_MAX": "bytes of the key of a record",
    "ports.records:VALUE_BYTES_MAX": "bytes of a record",
    "ports.streams:APPENDS_MAX": "messages published in one call",
    "ports.streams:BODY_BYTES_MAX": "bytes of the body of an entry",
    "ports.streams:KEY_BYTES_MAX": "bytes of an idempotency key",
    "ports.streams:SEQ_MAX": "the second number of an entry's id",
    "ports.rules.subjects:SUBJECT_BYTES_MAX": "bytes of a subject",
    "streams.envelope:PAYLOAD_BYTES_MAX": "bytes of the payload of a message in an envelope",
}  # fmt: skip
_NAME = re.compile(r"[A-Z][A-Z_]*_MAX|MAX_[A-Z_]+")
INTRO = """\
Everything that comes from outside has a limit: bytes, numbers, nesting, time. What is beyond one is refused or set
aside with the reason, and costs what it belongs to: its job, its entry, its request, its connection. The values are
those of this version, read from the code; where a setting can change one, the row names it.
[SECURITY.md](../../SECURITY.md) says whom they protect from what."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One constant: where it is, its value as people write it, and what it bounds."""

    module: str
    name: str
    value: str
    meaning: str


def limits(modules: tuple[str, ...]) -> Iterator[Limit]:
    """The limits of these modules, in the order of the files."""
    for module in modules:
        values = vars(importlib.import_module(f"wrasse.{module}"))
        text = (SOURCES / f"{module.replace('.', '/')}.py").read_text("utf-8")
        lines, body = text.splitlines(), ast.parse(text).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            name, doc = node.targets[0].id, _docstring(after)
            if _NAME.fullmatch(name) or (doc and name.isupper() and not name.startswith("_")):
                comment = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")[2]
                meaning = doc or MEANINGS.get(f"{module}:{name}") or comment
                yield Limit(module, name, _shown(name, values[name]), meaning)


def render() -> str:
    """The page."""
    chapters = []
    for title, modules in CHAPTERS.items():
        found = list(limits(modules))
        if missing := [f"{each.module}:{each.name}" for each in found if not each.meaning]:
            raise LookupError(f"no meaning of {', '.join(missing)}; do: write a docstring below it")
        rows = [[each.value, each.meaning, code(f"{each.module}:{each.name}")] for each in found]
        chapters += [f"## {title}", table(["limit", "of what", "in the code"], rows)]
    return page("Limits", INTRO, chapters)


def _docstring(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def _shown(name: str, value: object) -> str:
    if isinstance(value, timedelta):
        return format_duration(value)
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is no number")
    if isinstance(value, int) and value >= 1 << 10 and value % (1 << 10) == 0:
        for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
            if value % (1 << shift) == 0 and value >> shift < 1 << 12:
                return f"{value >> shift} {unit}"
    return f"{value:,.0f} s" if isinstance(value, float) else f"{value:,}"
