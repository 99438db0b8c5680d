"""Everything that a server, a bucket, a directory or a database holds, as text, read without any code of wrasse.

A dump is a list of items, each a name and lines. Bytes that are text are shown as text, others with escapes; what is
compressed is unpacked. Items and members without an order of their own are sorted by what is not random in them.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import msgspec
import nats as nats_py
import redis
import zstandard

from wire.placeholders import Placeholders

_INNER = re.compile(r'("payload":)"([A-Za-z0-9+/]{4,}={0,2})"')
_LOCKS = "%w/lock/[0-9a-f][0-9a-f]"
CUT = 5_000  # bytes of one value; nothing in a scenario is longer


@dataclass(frozen=True)
class Item:
    """Something that is stored: its name, what it is, and what is in it."""

    name: str
    kind: str
    lines: Sequence[str]


def as_text(items: Iterable[Item], names: Placeholders) -> str:
    """The dump as it is recorded."""
    parts = []
    for item in sorted(items, key=lambda each: (names.skeleton(each.name), each.name)):
        parts.append(names(f"{item.name}  [{item.kind}]"))
        parts += [names(f"  {line}") for line in item.lines]
    return "\n".join(parts) + "\n"


def shown(data: bytes) -> str:
    """Bytes on one line: text as it is, escapes for what is none."""
    if data[:1] and 0x80 <= data[0] <= 0x9F:  # a small map or array of Lua's, whose order is Lua's own
        return f"msgpack {json.dumps(_unpacked(data), sort_keys=True)}"
    text = data.decode("utf-8", "backslashreplace")
    assert len(data) <= CUT, f"{len(data)} bytes of {text[:80]!r}: scenarios store small things"
    return _INNER.sub(_inner, "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


def _inner(found: re.Match[str]) -> str:
    """A payload of JSON in base64, readable."""
    data = base64.b64decode(found[2])
    if not data.startswith((b"{", b"[")) or base64.b64encode(data).decode() != found[2]:
        return found[0]
    return f"{found[1]}base64 of {shown(data)}"


def _unpacked(data: bytes) -> object:
    try:
        return msgspec.to_builtins(msgspec.msgpack.decode(data, strict=False))
    except (msgspec.MsgspecError, UnicodeError):
        return data.hex()


def unordered(lines: Iterable[str], names: Placeholders) -> list[str]:
    """Members of a hash or a set, in an order that does not depend on what is random in them."""
    return sorted(lines, key=lambda line: (names.skeleton(line), line))


# Redis

# Records count their writes, and of writes at the same time either may be the first.
_UNNUMBERED = re.compile(r"(?<![0-9A-Za-z])\d+(?=-f0{2,}[0-9a-f]{1,5}(?![0-9a-f]))")


def redis_items(url: str, names: Placeholders) -> list[Item]:
    """Every key of the database, with its type, its content and how long it has to live."""
    with redis.Redis.from_url(url) as client:
        return [_redis_item(client, key, names) for key in sorted(client.scan_iter(count=1_000))]


def _redis_item(client: Any, key: bytes, names: Placeholders) -> Item:
    kind = client.type(key).decode()
    match kind:
        case "string":
            lines = [shown(client.get(key))]
        case "list":
            lines = [shown(each) for each in client.lrange(key, 0, -1)]
        case "set":
            lines = unordered(map(shown, client.smembers(key)), names)
        case "hash":
            lines = unordered((f"{shown(name)} = {shown(text)}" for name, text in client.hgetall(key).items()), names)
        case "zset":
            lines = unordered(
                (f"{score:.0f} {shown(name)}" for name, score in client.zrange(key, 0, -1, withscores=True)), names
            )
        case "stream":
            lines = _redis_stream(client, key)
        case _:
            raise AssertionError(f"a key of type {kind}")
    if b":records:" in key:
        lines = [f"‹n› {line.partition(' ')[2]}" for line in lines] if key.endswith(b":gone") else lines
        lines = unordered((_UNNUMBERED.sub("‹n›", line) for line in lines), names)
    return Item(shown(key), f"{kind}, {_lives(client.pttl(key))}", lines)


def _redis_stream(client: Any, key: bytes) -> list[str]:
    rings = key.endswith(b":wake")  # where the server makes the ids
    lines = [f"{'‹id›' if rings else id.decode()} {_fields(entry)}" for id, entry in client.xrange(key)]
    for group in client.xinfo_groups(key):
        lines.append(
            f"group {shown(group['name'])} read to {group['last-delivered-id'].decode()}, {group['pending']} pending"
        )
        for consumer in client.xinfo_consumers(key, group["name"]):
            lines.append(f"  consumer {shown(consumer['name'])}, {consumer['pending']} pending")
        for each in client.xpending_range(key, group["name"], "-", "+", 1_000):
            lines.append(f"  {each['message_id'].decode()} {shown(each['consumer'])} x{each['times_delivered']}")
    return lines


def _fields(entry: Mapping[bytes, bytes]) -> str:
    return " ".join(f"{shown(name)}={shown(text)}" for name, text in entry.items())


def _lives(pttl: int) -> str:
    """The class of a time to live: it has run down a little when it is read."""
    if pttl < 0:
        return "stays"
    classes = ((60, "1m"), (3_600, "1h"), (86_400, "1d"), (31 * 86_400, "31d"))
    return next((f"at most {name} to live" for limit, name in classes if pttl <= limit * 1_000), "over 31d to live")


# NATS

_SERVERS_OWN = ("allow_direct", "mirror_direct", "metadata", "compression", "consumer_limits")  # defaults by version


async def nats_items(url: str) -> list[Item]:
    """Every stream with its settings, messages and consumers; key-value buckets are streams."""
    client = await nats_py.connect(url)
    try:
        listed = await _asked(client, "STREAM.LIST")
        items: list[Item] = []
        for info in listed.get("streams") or []:
            items += await _nats_stream(client, info)
        return items
    finally:
        await client.close()


async def _asked(client: Any, what: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
    answer = await client.request(f"$JS.API.{what}", json.dumps(body or {}).encode(), timeout=10)
    return dict(json.loads(answer.data))


async def _nats_stream(client: Any, info: Mapping[str, Any]) -> list[Item]:
    config = info["config"]
    name = config["name"]
    items = [Item(name, "stream", _settings(config))]
    messages = []
    seq = 0
    while seq < info["state"]["last_seq"]:
        got = await _asked(client, f"STREAM.MSG.GET.{name}", {"seq": seq + 1, "next_by_subj": ">"})
        if "message" not in got:
            break
        message = got["message"]
        seq = message["seq"]
        headers = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:]
        lines = [_unnumbered(line) for line in sorted(filter(None, headers))]
        messages.append(
            Item(f"{name} {message['subject']}", "message", [*lines, shown(base64.b64decode(message.get("data", "")))])
        )
    items += messages if config["name"].startswith("KV_") else [_numbered(n, m) for n, m in enumerate(messages, 1)]
    listed = await _asked(client, f"CONSUMER.LIST.{name}")
    for each in listed.get("consumers") or []:
        own = each["config"]
        floor, unacked = each["ack_floor"]["stream_seq"], each["num_ack_pending"]
        state = f"acked to {floor}, {unacked} unacked, {each['num_pending']} to come"
        items.append(
            Item(f"{name} consumer {own.get('durable_name') or own['name']}", "consumer", [*_settings(own), state])
        )
    return items


def _unnumbered(header: str) -> str:
    """Of writes of records at the same time either may be the first; batches are named after requests."""
    name, _, text = header.partition(":")
    if name == "Nats-Batch-Id":
        return f"{name}:‹id›"
    return f"{name}:‹n›" if name == "Nats-Expected-Last-Subject-Sequence" and text.strip() != "0" else header


def _numbered(number: int, message: Item) -> Item:
    stream, _, subject = message.name.partition(" ")
    return Item(f"{stream} #{number:02} {subject}", message.kind, message.lines)


def _settings(config: Mapping[str, Any]) -> list[str]:
    return [f"{key}: {json.dumps(value)}" for key, value in sorted(config.items()) if key not in _SERVERS_OWN and value]


# Directories and buckets


def directory_items(root: Path) -> list[Item]:
    """Every file with its mode and bytes, and every directory that is empty. Locks are 256 files at most."""
    items = [Item("%w/lock/‹00 to ff›", "files 600", [])] if any(root.glob(_LOCKS)) else []
    for path in sorted(set(root.rglob("*")) - set(root.glob(_LOCKS))):
        name, mode = str(path.relative_to(root)), stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            items.append(Item(name, "link", [str(path.readlink())]))
        elif path.is_dir():
            if not any(path.iterdir()):
                items.append(Item(f"{name}/", f"empty directory {mode:o}", []))
        else:
            items.append(Item(name, f"file {mode:o}{_packed(name)}", unpacked(name, path.read_bytes())))
    return items


def object_items(objects: Mapping[str, tuple[bytes, Mapping[str, str]]]) -> list[Item]:
    """Objects of a bucket: bytes and headers."""
    return [
        Item(
            key,
            f"object{_packed(key)}",
            [*(f"{name}: {text}" for name, text in sorted(headers.items())), *unpacked(key, data)],
        )
        for key, (data, headers) in objects.items()
    ]


def _packed(name: str) -> str:
    return ", gzip" if name.endswith(".gz") else ", zstd" if name.endswith(".zst") else ""


def unpacked(name: str, data: bytes) -> list[str]:
    """The lines of what is in a file or an object."""
    if name.endswith(".gz") and data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    elif name.endswith(".zst"):
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return [shown(line) for line in data.split(b"\n")] if data else ["(empty)"]


# SQLite


def sqlite_items(path: Path) -> list[Item]:
    """Every table with its rows, in the order in which they are stored."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type='table' ORDER BY name")]
        return [Item(name, "table", _rows(db, name)) for name in tables]
    finally:
        db.close()


def _rows(db: apsw.Connection, table: str) -> list[str]:
    names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    return [
        " | ".join(f"{name}={_cell(cell)}" for name, cell in zip(names, row, strict=True))
        for row in db.execute(f"SELECT * FROM {table}")
    ]


def _cell(cell: object) -> str:
    return shown(cell) if isinstance(cell, bytes) else "NULL" if cell is None else str(cell)
