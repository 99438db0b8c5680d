"""Durable pull consumers of JetStream: each is a group. Finds, checks and makes a group's durable, and pulls from it.

A durable carries the group's name. Where a group reads more than one subject of a stream, the further ones are
`<group>__<subject, dots as _>`. It is made with action `create` and never updated: an update would silently change what
it reads. An existing one is joined if it delivers exactly these messages, whichever program made it, and refused
otherwise. See `docs/design/022-nats-groups.md`.

A pull request (`Pulls`) is for up to `limit` messages of a durable, answered as soon as there is one. A request with
`no_wait` and `expires` is a one-shot long poll: the server answers with the available messages, or waits for the first
one. If the waiting requests already exceed what can be delivered (the durable is paused, or its MaxAckPending reached),
the server refuses another one at once: then a request for a single message waits in line. Each request uses an inbox
with a subscription of its own, which the next request reuses. A request that is given up (cancelled, or without an
answer) loses its subscription: the server then drops the request, and messages on their way are nacked.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from itertools import count
from typing import Any

from wrasse.backends.nats.client.connection import NoResponders, Subscription, packed, status_of
from wrasse.backends.nats.client.jetstream import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND, JetStream, JsError, number
from wrasse.backends.nats.client.transport import ANSWER_MAX
from wrasse.backends.nats.message_codec import NatsNames, moment
from wrasse.backends.nats.page_reader import PageBudget
from wrasse.backends.nats.stream_map import SubjectStream
from wrasse.errors import Refused, StoreUnavailable
from wrasse.ports.groups import ACK_TIMEOUT
from wrasse.ports.rules.subjects import matches

_EXISTS = (10148, 10105, 10013)  # a consumer of this name with another configuration exists
_QUEUE_TAKEN = (10099, 10100)  # a work queue has another consumer of the same messages
_QUEUE_BEGINS = 10101  # a consumer of a work queue must begin with its first message
_NAME_MAX = 200  # of 255 that the server allows
_WAITING_MAX = 4_096  # pull requests that may wait at once; 512 by default
_OURS = "wrasse group "
SHOWN = "how far a group of wrasse is"  # marks consumers that only show progress: no groups
_NAMED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+:;,@#$%&!?()[]{}<^~|'\"`")
_MICROSECOND = timedelta(microseconds=1)
_TRIES = 3
_UNFIT = {
    "inactive_threshold": "after which without a question the server deletes it, and the group would lose its place",
    "headers_only": "so that messages come without their payload",
    "priority_groups": "so that only members of these are given messages",
    "max_batch": "so that larger pull requests are refused",
    "max_expires": "so that longer pull requests are refused",
    "max_bytes": "so that larger pull requests are refused",
}

NAK = b"-NAK"
_BYTES_MAX = 8 << 20  # of one request
_UNASKED_MAX = 64 << 20  # below this worst case no byte limit is requested, since one costs an extra message
_ENVELOPE = 64 << 10  # of a message beyond its payload
_GRACE = 2.0  # seconds beyond the wait, for a busy server
_FREE_MAX = 64

Config = Mapping[str, Any]


class Reads(Enum):
    """What a consumer reads, relative to one subject."""

    SAME = "exactly this subject"
    MORE = "this subject and others"
    OTHER = "other subjects"


@dataclass(frozen=True, slots=True)
class Durable:
    """One durable consumer as the server reports it. Positions are sequences of its stream."""

    stream: str
    name: str
    group: str
    ack_wait: timedelta
    proves: bool  # whether all below its floor is acked: neither given up (MaxDeliver) nor sent without acks
    most: int  # MaxAckPending: the most unacked messages at once, -1 if there is no limit
    ours: bool  # made by wrasse
    floor: int
    delivered: int
    pending: int
    unread: int
    waiting: int
    active_at: datetime | None  # when something was last delivered or acked


class Durables:
    """The durables of one backend's streams."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._alone: dict[str, bool] = {}

    async def find(self, subject_stream: SubjectStream, group: str, *, reads_more: bool = False) -> Durable | None:
        """The durable of a group on one subject; None if there is none. Refused if the durable of that name delivers
        this subject's messages together with others; with `reads_more` that one is returned."""
        return (await self._search(subject_stream, group, reads_more=reads_more))[0]

    async def _search(
        self, subject_stream: SubjectStream, group: str, *, reads_more: bool = False
    ) -> tuple[Durable | None, str]:
        """The durable of a group, and the name for a new one: empty if all are used."""
        alone = await self._is_alone(subject_stream)
        names = durable_names(group, subject_stream.subject)
        free = list(names)
        for name in names:
            info = await self._info(subject_stream.stream, name)
            if info is None:
                continue
            free.remove(name)
            config: Config = info["config"]
            reads = reads_of(config, subject_stream.subject, alone=alone)
            if reads is Reads.OTHER or config.get("description") == SHOWN:
                continue
            if reads is Reads.MORE and not reads_more:
                raise Refused(
                    f"the durable {name!r} of the stream {subject_stream.stream!r} delivers more than "
                    f"{subject_stream.subject!r}, and a "
                    f"second one for the group {group!r} would deliver messages twice",
                    do="use another group, or a durable whose filter is this subject",
                )
            told = str(config.get("description", ""))
            if told.startswith(_OURS) and told != _OURS + group:
                raise Refused(
                    f"the durable {name!r} of the stream {subject_stream.stream!r} belongs to the group "
                    f"{told[len(_OURS) :]!r}",
                    do=f"use another name than {group!r}",
                )
            return durable_of(info, group), name
        return None, free[0] if free else ""

    async def join(
        self, subject_stream: SubjectStream, group: str, start: Mapping[str, object], ack_timeout: timedelta | None
    ) -> tuple[Durable, bool]:
        """The durable of a group, and whether it was made now."""
        for _ in range(_TRIES):
            found, free = await self._search(subject_stream, group)
            if found is not None:
                await self._check(found, ack_timeout)
                return found, False
            if not free:
                names = " and ".join(map(repr, durable_names(group, subject_stream.subject)))
                raise Refused(
                    f"the names {names} of a durable for the group {group!r} on {subject_stream.subject!r} are "
                    "used in the "
                    f"stream {subject_stream.stream!r} by consumers of other subjects",
                    do="use another name for the group, or give this subject a stream of its own",
                )
            made = await self._create(subject_stream, group, free, start, ack_timeout or ACK_TIMEOUT)
            if made is not None:
                return made, True
        raise StoreUnavailable(f"the durable of the group {group!r} was deleted again", do="see who deletes consumers")

    async def of(self, subject_stream: SubjectStream) -> list[Durable]:
        """Every durable that delivers messages of this subject and expects acks."""
        found: list[Durable] = []
        alone = await self._is_alone(subject_stream)
        async for page in self._js.pages(f"CONSUMER.LIST.{subject_stream.stream}", "consumers", whole=True):
            for info in page:
                config: Config = info["config"]
                reads = reads_of(config, subject_stream.subject, alone=alone)
                acked = config.get("durable_name") and config.get("ack_policy") != "none"
                if acked and reads is not Reads.OTHER and config.get("description") != SHOWN:
                    found.append(durable_of(info, group_named(config, str(info["name"]))))
        return sorted(found, key=lambda each: each.group)

    async def _check(self, found: Durable, ack_timeout: timedelta | None) -> None:
        info = await self._info(found.stream, found.name)
        config: Config = {} if info is None else info["config"]
        unfit = unfit_of(config)
        if unfit:
            raise Refused(
                f"the durable {found.name!r} of the stream {found.stream!r} {unfit}",
                do="use a durable that is pulled with ack_policy explicit and has none of these, or another name for"
                " the group",
            )
        if ack_timeout is not None and ack_timeout != found.ack_wait:
            seconds = ack_timeout.total_seconds()
            raise Refused(
                f"the durable {found.name!r} of the stream {found.stream!r} has AckWait "
                f"{found.ack_wait.total_seconds():g}s, and ack_timeout is {seconds:g}s",
                do=f"set ack_timeout to its value, or: nats consumer edit {found.stream} {found.name} "
                f"--wait {seconds:g}s",
            )

    async def _create(
        self, subject_stream: SubjectStream, group: str, name: str, start: Mapping[str, object], ack_wait: timedelta
    ) -> Durable | None:
        """Makes it; None if one of this name exists by now."""
        config = {
            "durable_name": name,
            "name": name,
            "description": _OURS + group,
            "ack_policy": "explicit",
            "ack_wait": ack_wait // _MICROSECOND * 1_000,
            "max_deliver": -1,
            "max_ack_pending": -1,
            "max_waiting": _WAITING_MAX,
            "filter_subject": subject_stream.subject,
            "replay_policy": "instant",
            **start,
        }
        asked = {"stream_name": subject_stream.stream, "config": config, "action": "create"}
        try:
            info = await self._js.call(
                f"CONSUMER.CREATE.{subject_stream.stream}.{name}.{subject_stream.subject}", asked
            )
        except JsError as refused:
            if refused.code in _EXISTS:
                return None
            if refused.code in _QUEUE_TAKEN:
                raise Refused(
                    f"the stream {subject_stream.stream!r} is a work queue, and there is a consumer for "
                    f"{subject_stream.subject!r} already",
                    do="use the group of that consumer's name, or a stream with retention limits",
                ) from refused
            if refused.code == _QUEUE_BEGINS:
                raise Refused(
                    f"the stream {subject_stream.stream!r} is a work queue, whose groups begin at the first message, "
                    "not at a "
                    "later one",
                    do="begin the group at the first entry: start='first', or --from=first",
                ) from refused
            if refused.code == STREAM_NOT_FOUND:
                raise StoreUnavailable(f"the stream {subject_stream.stream!r} was deleted", do="try again") from refused
            raise
        return durable_of(info, group)

    async def drop_dead_pulls(self, durable: Durable) -> None:
        """Requests a durable's state, which makes the server drop dead pull requests."""
        await self._info(durable.stream, durable.name)

    async def _info(self, stream: str, name: str) -> Mapping[str, Any] | None:
        try:
            return await self._js.call(f"CONSUMER.INFO.{stream}.{name}")
        except JsError as refused:
            if refused.code in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                return None
            raise

    async def _is_alone(self, subject_stream: SubjectStream) -> bool:
        """Whether the stream takes no other subject."""
        if subject_stream.own:
            return True
        if subject_stream.stream not in self._alone:
            config: Config = (await self._js.call(f"STREAM.INFO.{subject_stream.stream}"))["config"]
            self._alone[subject_stream.stream] = config.get("subjects") == [subject_stream.subject]
        return self._alone[subject_stream.stream]


def durable_names(group: str, subject: str) -> tuple[str, str]:
    """The names a group's durable may have: the group's, and the one with the subject. Pure."""
    plain = _shortened("".join(each if each in _NAMED else _escaped(each) for each in group))
    return plain, _shortened(
        f"{plain}__{''.join(c if c in _NAMED else '_' if c == '.' else _escaped(c) for c in subject)}"
    )


def group_named(config: Config, name: str) -> str:
    """The group of a durable: by its metadata, else by its name. Pure."""
    told = str(config.get("description", ""))
    if told.startswith(_OURS):
        return told[len(_OURS) :]
    plain, _, rest = name.rpartition("__")
    subject = str(config.get("filter_subject", ""))
    return plain if plain and subject and rest == subject.replace(".", "_") else name


def unfit_of(config: Config) -> str:
    """What prevents a group from sharing this durable; empty if nothing does. Pure."""
    if config.get("deliver_subject"):
        return "pushes messages"
    if config.get("ack_policy") != "explicit":
        return f"has ack_policy {config.get('ack_policy')}"
    return next((f"has {name}, {why}" for name, why in _UNFIT.items() if config.get(name)), "")


def reads_of(config: Config, subject: str, *, alone: bool) -> Reads:
    """What a consumer reads, by its filters; `alone`: its stream has no other subject. Pure."""
    filters = [str(each) for each in config.get("filter_subjects") or [config.get("filter_subject", "")]]
    whole = filters == [""]
    if whole or any(each == subject or matches(each, subject) for each in filters):
        return Reads.SAME if alone or filters == [subject] else Reads.MORE
    return Reads.OTHER


def durable_of(info: Mapping[str, Any], group: str) -> Durable:
    """A durable from the answer of CONSUMER.INFO."""
    config: Config = info["config"]
    floor, delivered = (number(info[what]["stream_seq"]) for what in ("ack_floor", "delivered"))
    pending = number(info["num_ack_pending"])
    active = [str(info[what].get("last_active", "")) for what in ("ack_floor", "delivered")]
    return Durable(
        str(info["stream_name"]),
        str(info["name"]),
        group,
        timedelta(microseconds=number(config.get("ack_wait", 0)) // 1_000),
        proves=int(config.get("max_deliver", -1)) <= 0 and config.get("ack_policy") in ("explicit", "all"),
        most=int(config.get("max_ack_pending", -1)),
        ours=str(config.get("description", "")).startswith(_OURS),
        # Servers before 2.10 report no floor before the first ack.
        floor=max(floor, delivered) if not pending else floor,
        delivered=delivered,
        pending=pending,
        unread=number(info["num_pending"]),
        waiting=number(info.get("num_waiting", 0)),
        active_at=max(map(moment, filter(None, active)), default=None),
    )


async def giving_up(js: JetStream, layout: NatsNames) -> list[tuple[str, str, int]]:
    """Durables with a maximum of deliveries, with their streams, of all streams that may be ours to read."""
    found: list[tuple[str, str, int]] = []
    async for page in js.pages("STREAM.LIST", "streams"):
        for stream in page:
            subjects = [str(each) for each in stream["config"].get("subjects") or []]
            reserved = not subjects or all(map(layout.reserved, subjects))
            if reserved or not stream["state"].get("consumer_count"):
                continue
            name = str(stream["config"]["name"])
            listed = (await js.call(f"CONSUMER.LIST.{name}", {})).get("consumers") or []  # the first 256 are enough
            for config in (each["config"] for each in listed):
                most = int(config.get("max_deliver", -1))
                if config.get("durable_name") and config.get("ack_policy") != "none" and most > 0:
                    found.append((name, str(config["durable_name"]), most))
    return found


def _escaped(letter: str) -> str:
    return "".join(f"={byte:02X}" for byte in letter.encode("utf-8", "surrogatepass"))


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_MAX else f"{name[:120]}={hashlib.sha256(name.encode()).hexdigest()[:40]}"


@dataclass(frozen=True, slots=True)
class PulledMessage:
    """One message as it was delivered; `reply` is the subject of its ack."""

    reply: bytes
    header: bytes
    body: bytes


class _Pull:
    """One request."""

    __slots__ = ("budget", "ended", "found", "refused_to_wait", "wanted")

    def __init__(self, wanted: int, size: int) -> None:
        self.found: list[PulledMessage] = []
        self.wanted = wanted
        self.refused_to_wait = False  # waiting requests already exceed what can be delivered
        self.budget = PageBudget(wanted, size)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, error: StoreUnavailable | None = None) -> None:
        """Ends the request, complete or not: messages that arrived count in both cases."""
        if self.ended.done():
            return
        if error is None or self.found:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    def cut(self, why: str) -> None:
        """The connection ended."""
        self.end(StoreUnavailable(f"the connection ended during a pull request: {why}", do="ask again"))


class _PullInbox:
    """The inbox for the answers of one request after another."""

    __slots__ = ("_pulls", "count", "pull", "reply", "subject", "subscription")

    def __init__(self, pulls: Pulls, subject: bytes) -> None:
        self._pulls = pulls
        self.subject = subject
        self.subscription: Subscription | None = None
        self.pull: _Pull | None = None
        self.count = 0  # of requests
        self.reply = b""

    def ask(self, pull: _Pull) -> bytes:
        """The reply subject of this request: the end of an earlier one may arrive late."""
        self.pull = pull
        self.count += 1
        self.reply = b"%b.%d" % (self.subject, self.count)
        return self.reply

    def heard(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """A message, or the status that ends a request."""
        pull = self.pull
        status = status_of(header) if header.startswith(b"NATS/1.0 ") else 0
        if not status and pull is None:
            self._pulls.nack([reply])  # the request was given up while the message was on its way
        elif pull is None or status == 100 or (status and subject != self.reply):
            return
        elif not status:
            pull.budget.spend(len(header) + len(payload))
            pull.found.append(PulledMessage(reply, header, payload))
            if len(pull.found) >= pull.wanted:
                pull.end()
        elif status == 503:
            pull.end(NoResponders("the consumer does not answer", do="try again, or join its group"))
        elif status == 400 or header[13:].startswith(b"Exceeded "):  # refused: a repetition would be refused again
            why = header[13:].split(b"\r\n", 1)[0].decode(errors="replace")
            pull.end(StoreUnavailable(f"NATS refused a pull request: {why}", do="look at the consumer's limits"))
        else:  # 404, 408, 409: no more messages for this request
            pull.refused_to_wait = status == 408 and header[13:].startswith(b"Requests Pending")
            pull.end()


class Pulls:
    """Pulls messages of durables."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._connection = js.connection
        self._free: list[_PullInbox] = []
        self._numbers = count(1)
        self._base = js.connection.open_inbox(lambda *_: None, lambda _: None)
        js.connection.close_inbox(self._base)

    async def ask(self, stream: str, name: str, limit: int, wait: timedelta) -> list[PulledMessage]:
        """Up to `limit` messages, waiting up to `wait` for the first one. NoResponders: the durable does not exist, or
        has no leader now."""
        found = await self._once(stream, name, limit, wait, b',"no_wait":true')
        if found is None:
            found = await self._once(stream, name, 1, wait, b"")
        return found or []

    async def _once(
        self, stream: str, name: str, limit: int, wait: timedelta, how: bytes
    ) -> list[PulledMessage] | None:
        """One request; None if the server refused to let it wait behind others."""
        inbox = self._free.pop() if self._free else await self._open()
        largest = self._connection.server.max_payload + _ENVELOPE
        size = max(_BYTES_MAX, largest)
        pull = _Pull(limit, _UNASKED_MAX + size + ANSWER_MAX)
        reply = inbox.ask(pull)
        watch = self._connection.open_inbox(lambda *_: None, pull.cut)
        expires = b',"expires":%d' % (wait // _MICROSECOND * 1_000) if wait > timedelta(0) else b""
        if limit * largest > _UNASKED_MAX:
            expires += b',"max_bytes":%d' % size
        request = b'{"batch":%d%b%b}' % (limit, how, expires)
        subject = f"{self._js.api}.CONSUMER.MSG.NEXT.{stream}.{name}".encode()
        whole = False
        try:
            await self._connection.send(packed(subject, request, reply), now=True)
            whole = await self._ended(pull, wait)
            return None if pull.refused_to_wait and wait > timedelta(0) else pull.found
        except BaseException:
            self.nack([each.reply for each in pull.found])
            raise
        finally:
            self._connection.close_inbox(watch)
            inbox.pull = None
            self._put_away(inbox, whole=whole)

    async def _ended(self, pull: _Pull, wait: timedelta) -> bool:
        """Whether the server ended it; False if the time was over before."""
        seconds = (
            wait.total_seconds() + _GRACE
            if wait > timedelta(0)
            else self._connection.options.read_timeout.total_seconds()
        )
        try:
            async with asyncio.timeout(seconds):
                await pull.ended
        except TimeoutError:
            if wait > timedelta(0) or pull.found:
                return False  # the leader went away with the request
            raise StoreUnavailable(
                f"{self._connection.options.where} did not answer in {seconds:g}s", do="check that the server is up"
            ) from None
        return True

    def nack(self, replies: Sequence[bytes]) -> None:
        """Nacks messages if the connection stands and is writable: else they are delivered again at their deadline."""
        self._connection.post(b"".join(packed(reply, NAK) for reply in replies))

    async def _open(self) -> _PullInbox:
        inbox = _PullInbox(self, self._base + b".%d" % next(self._numbers))
        inbox.subscription = await self._connection.listen(inbox.subject + b".*", inbox.heard)
        return inbox

    def _put_away(self, inbox: _PullInbox, *, whole: bool) -> None:
        if whole and len(self._free) < _FREE_MAX:
            self._free.append(inbox)
        elif inbox.subscription is not None:
            inbox.subscription.drain()
