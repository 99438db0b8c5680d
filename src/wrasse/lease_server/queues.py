"""The calls of the lease API for queues: lockd's messages, stored as records beside the leases.

Not implemented: endless streams of messages (subscribe, watch). A dequeue with a wait replaces them. The suffix of a
message's lease id says how it was delivered: with its state, within a transaction.

An enqueue is a multipart body of bounded size. Each part is found by one search, and at most PARTS_MAX parts are read:
lines before or inside a part add no cost.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from email.message import Message
from email.parser import BytesHeaderParser

import msgspec
from aiohttp import web

from wrasse.clock import Clock
from wrasse.errors import TooLarge
from wrasse.ids import uuid7
from wrasse.jobs.record_queue.queue import ATTEMPTS_HEADER
from wrasse.lease_server import request_parsing
from wrasse.lease_server.access import allowed_namespace
from wrasse.lease_server.queue_service import (
    ATTEMPTS,
    ATTRIBUTES_HEADER,
    EXPIRES_HEADER,
    TYPE_HEADER,
    VISIBILITY,
    VISIBILITY_HEADER,
    ConsumerProof,
    QueueService,
    attempts_of,
    failure,
    state_key,
    visibility_of,
)
from wrasse.lease_server.wire import (
    SECONDS_MAX,
    Acked,
    DeliveredMessage,
    DequeueBody,
    EnqueueAnswer,
    EnqueueMeta,
    Extended,
    MessageBody,
    MessagePart,
    Nacked,
    Stats,
    StatsBody,
    WireError,
    Wrap,
    named_answer,
)
from wrasse.leases.lease import KeyRecord, presented_lease
from wrasse.leases.leases import Leases
from wrasse.leases.names import Xids, checked_key
from wrasse.ports.jobs import (
    ERROR_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    Budget,
    Claim,
    ClaimedJob,
    DeadLetterJob,
    Job,
    JobFilter,
    JobInfo,
    JobState,
    QueueCount,
    Reason,
    Requeue,
)

PARTS_MAX = 8
"""Maximum number of parts of a multipart body that are read."""
PART_HEAD_BYTES_MAX = 8 << 10
"""Maximum bytes of the headers of one part of a multipart body."""
PAGE_MAX = 64
"""Maximum number of messages that one dequeue delivers."""
QUEUE_CHARS_MAX = 80
"""Maximum characters of the name of a queue of the lease API."""
WAIT_AT_ONCE = 20  # seconds that one claim waits; longer waits claim again
_REFUSALS = {
    "not_found": (404, "there is no such message"),
    "queue_message_lease_mismatch": (409, "the message is not held under this lease"),
    "lease_expired": (403, "the lease of the message has ended; others may have it now"),
    "cas_mismatch": (409, "meta_etag is not that of the message as it was handed out"),
}


class NoParts(ValueError):
    """The body is not valid multipart; the message says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its name or an empty text, its content type, and its bytes."""

    name: str
    kind: str
    data: bytes


def parts_of(content_type: str, body: bytes) -> list[Part]:
    """The first parts of a body with this Content-Type. Raises NoParts."""
    mark = b"--" + _boundary(content_type)
    at = 0 if body.startswith(mark) else _found(body, b"\r\n" + mark, 0) + 2
    parts: list[Part] = []
    while len(parts) < PARTS_MAX:
        at += len(mark)
        if body.startswith(b"--", at):
            break
        begin = _found(body, b"\r\n", at) + 2
        if body[at:begin].strip():
            raise NoParts("a boundary has more behind it")
        end = _found(body, b"\r\n" + mark, begin - 2)  # the line of one boundary may end where that of the next begins
        parts.append(_part(body, begin, max(begin, end)))
        at = end + 2
    return parts


def _boundary(content_type: str) -> bytes:
    head = Message()
    head["Content-Type"] = content_type
    boundary = head.get_boundary()
    if not boundary:
        raise NoParts("the content type names no boundary")
    return boundary.encode("utf-8", "surrogateescape")


def _found(body: bytes, what: bytes, start: int) -> int:
    at = body.find(what, start)
    if at < 0:
        raise NoParts("the last part does not end")
    return at


def _part(body: bytes, begin: int, end: int) -> Part:
    if body.startswith(b"\r\n", begin):
        return Part("", "", body[begin + 2 : end])
    blank = body.find(b"\r\n\r\n", begin, min(end, begin + PART_HEAD_BYTES_MAX))
    if blank < 0 and end - begin > PART_HEAD_BYTES_MAX:
        raise NoParts("the headers of a part are too long")
    head = BytesHeaderParser().parsebytes(body[begin : end if blank < 0 else blank + 2])
    name = head.get_param("name", "", "content-disposition")
    said = name if isinstance(name, str) else name[2]
    return Part(said, str(head.get("Content-Type", "")), b"" if blank < 0 else body[blank + 4 : end])


async def parse_enqueue(request: web.Request, reserve: Callable[[int], None]) -> tuple[EnqueueMeta, bytes, str]:
    """The parts of an enqueue: meta, payload, and the payload's content type."""
    request_parsing.plain(request)
    if not request.content_type.startswith("multipart/"):
        raise WireError("invalid_content_type", "the body is multipart/related or multipart/form-data")
    sent = await request_parsing.body(request, request_parsing.ENQUEUE_BYTES_MAX, reserve)
    reserve(len(sent))  # for the copies of its parts
    try:
        parts = parts_of(request.headers["Content-Type"], sent)
    except NoParts as error:
        raise WireError("multipart_error", f"the body is not made of parts: {error}") from None
    found: dict[str, Part] = {}
    for number, part in enumerate(parts):
        name = part.name or ("meta", "payload")[min(number, 1)]
        limit = request_parsing.JSON_BYTES_MAX if name == "meta" else PAYLOAD_BYTES_MAX
        if len(part.data) > limit:
            raise TooLarge(f"a part of more than {limit} bytes", do="send less")
        found[name] = part
    if "meta" not in found:
        raise WireError("multipart_error", "there is no part named meta")
    meta = request_parsing.decoded(found["meta"].data, EnqueueMeta, "the part meta")
    payload = found.get("payload", Part("payload", "", b""))
    return meta, payload.data, meta.payload_content_type or payload.kind or "application/octet-stream"


def multipart_answer(messages: Sequence[tuple[MessagePart, bytes]], correlation: str) -> web.Response:
    """Messages as a multipart answer."""
    boundary, body = secrets.token_hex(16), bytearray()
    for number, (meta, payload) in enumerate(messages):
        named = ("", "") if len(messages) == 1 else (f"meta-{number}.json", f"payload-{number}")
        kind = meta.message.payload_content_type
        _add(body, boundary, "meta", named[0], "application/json", msgspec.json.encode(meta))
        _add(body, boundary, "payload", named[1], kind, payload)
    body += f"--{boundary}--\r\n".encode()
    headers = {"Content-Type": f"multipart/related; boundary={boundary}", "X-Correlation-Id": correlation}
    return web.Response(body=bytes(body), headers=headers)


def _add(body: bytearray, boundary: str, name: str, file: str, kind: str, data: bytes) -> None:
    filename = f'; filename="{file}"' if file else ""
    body += (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{filename}\r\n'
        f"Content-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    ).encode()
    body += data + b"\r\n"


STATEFUL, JOINED = "s", "t"  # how a message was delivered


class QueueApi:
    """The calls, over the store of one `Leases`."""

    def __init__(self, leases: Leases, clock: Clock, bodies: request_parsing.Bodies) -> None:
        self.service = QueueService(leases, clock)
        self._bodies = bodies
        self._clock = clock
        self._xids = Xids(clock)

    def routes(self, call: Wrap) -> list[web.RouteDef]:
        """The routes."""
        posts = {
            "enqueue": self._enqueue, "dequeue": self._dequeue, "dequeueWithState": self._dequeue,
            "ack": self._ack, "nack": self._nack, "extend": self._extend, "stats": self._stats,
        }  # fmt: skip
        return [web.post(f"/v1/queue/{name}", call(handler)) for name, handler in posts.items()]

    async def _enqueue(self, request: web.Request, name: str) -> web.Response:
        async with self._bodies.room() as reserve:
            return await self._store_message(*await parse_enqueue(request, reserve), name)

    async def _store_message(self, meta: EnqueueMeta, payload: bytes, kind: str, name: str) -> web.Response:
        namespace, queue = _checked_names(meta.namespace, meta.queue)
        for each in (meta.delay_seconds, meta.visibility_timeout_seconds, meta.ttl_seconds, meta.max_attempts):
            _checked(each)
        if not kind.isascii() or not kind.isprintable() or len(kind) > 255:
            raise WireError("invalid_body", "payload_content_type is no content type")
        attempts = meta.max_attempts or ATTEMPTS
        visibility = meta.visibility_timeout_seconds or int(VISIBILITY.total_seconds())
        headers = {ATTEMPTS_HEADER: str(attempts), VISIBILITY_HEADER: str(visibility), TYPE_HEADER: kind}
        if meta.attributes:
            headers[ATTRIBUTES_HEADER] = msgspec.json.encode(meta.attributes).decode()
        delay = timedelta(seconds=meta.delay_seconds)
        if meta.ttl_seconds:
            expires_at = await self.service.jobs(namespace).now() + timedelta(seconds=meta.ttl_seconds)
            headers[EXPIRES_HEADER] = expires_at.isoformat()
        id = uuid7(self._clock)
        visible_at = await self.service.enqueue(
            namespace, Job(id, queue=queue, payload=payload, headers=headers, delay=delay, minted=True)
        )
        answer = EnqueueAnswer(
            namespace=namespace,
            queue=queue,
            message_id=id,
            attempts=0,
            max_attempts=attempts,
            not_visible_until_unix=int(visible_at.timestamp()),
            visibility_timeout_seconds=visibility,
            payload_bytes=len(payload),
            correlation_id=name,
        )
        return named_answer(answer, name)

    async def _dequeue(self, request: web.Request, name: str) -> web.Response:
        body = await request_parsing.json_body(request, DequeueBody)
        with_state = request.path.endswith("WithState")
        namespace, queue = _checked_names(body.namespace, body.queue)
        if not body.owner:
            raise WireError("missing_owner", "owner is missing: say who you are")
        request_parsing.checked_transaction(body.txn_id, "invalid_txn")
        if not 0 <= body.page_size <= PAGE_MAX:
            raise WireError("invalid_page_size", f"page_size is 1 to {PAGE_MAX}")
        _checked(body.visibility_timeout_seconds)
        claimed = await self._claim_waiting(body, namespace, queue, 1 if with_state else body.page_size or 1)
        messages: list[tuple[MessagePart, bytes]] = []
        try:
            for each in claimed:
                visibility = timedelta(seconds=body.visibility_timeout_seconds) or visibility_of(each.job)
                leased = await self._keys(namespace, each, body, visibility, with_state)
                message = self._message(namespace, each, visibility, name, leased, body.txn_id)
                messages.append((MessagePart(message, each.job.id), each.job.payload))
        except BaseException:
            for each in claimed:
                await self.service.release(namespace, each, body.txn_id)
            raise
        return multipart_answer(messages, name)

    async def _keys(
        self, namespace: str, claimed: ClaimedJob, body: DequeueBody, visibility: timedelta, with_state: bool
    ) -> KeyRecord | None:
        """Leases the keys that belong to a message."""
        if body.txn_id and not await self.service.join(namespace, claimed, visibility, body.txn_id):
            raise WireError("waiting", "another consumer has the message", status=409, wait=1)
        if not with_state:
            return None
        return await self.service.claim_state(namespace, claimed, body.owner, visibility, body.txn_id)

    async def _claim_waiting(self, body: DequeueBody, namespace: str, queue: str, limit: int) -> list[ClaimedJob]:
        visibility = timedelta(seconds=body.visibility_timeout_seconds) or None
        left = 0 if body.wait_seconds < 0 else body.wait_seconds or math.inf
        while True:
            wait = timedelta(seconds=min(left, WAIT_AT_ONCE))
            claimed = await self.service.claim(namespace, queue, body.owner, limit, visibility, wait)
            if claimed:
                return claimed
            left -= WAIT_AT_ONCE
            if left <= 0:
                raise WireError("waiting", f"there is no message in {queue!r}", status=409, wait=1)

    async def _ack(self, request: web.Request, name: str) -> web.Response:
        body = await request_parsing.json_body(request, MessageBody)
        proof = self._proof(body)
        found = await self.service.running(proof)
        if isinstance(found, str):
            if await self.service.acked(proof):
                return named_answer(Acked(True, name), name)
            raise _refused(found)
        if not await self.service.ack(proof, found.attempts):
            raise _refused("queue_message_lease_mismatch")
        return named_answer(Acked(True, name), name)

    async def _nack(self, request: web.Request, name: str) -> web.Response:
        body = await request_parsing.json_body(request, MessageBody)
        intent = body.intent or "failure"
        if intent not in ("failure", "defer"):
            raise WireError("invalid_nack_intent", "intent is failure or defer")
        error = _error(body)
        if error and intent == "defer":
            raise WireError("invalid_nack_last_error", "last_error goes with a failure")
        _checked(body.delay_seconds)
        proof, info = await self._running(body)
        delay = timedelta(seconds=body.delay_seconds)
        settlement: Requeue | DeadLetterJob
        if intent == "defer":
            settlement = Requeue(proof.claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED, delay=delay)
        else:
            settlement = failure(proof.claim, info, error, delay)
        if not await self.service.nack(proof, settlement):
            raise _refused("queue_message_lease_mismatch")
        return named_answer(Nacked(isinstance(settlement, Requeue), body.meta_etag, name), name)

    async def _extend(self, request: web.Request, name: str) -> web.Response:
        body = await request_parsing.json_body(request, MessageBody)
        _checked(body.extend_by_seconds)
        proof, _ = await self._running(body)
        by = timedelta(seconds=body.extend_by_seconds) or VISIBILITY
        extended = await self.service.extend(proof, by)
        if extended is None:
            raise _refused("queue_message_lease_mismatch")
        expires_at, state_expires_at = extended
        answer = Extended(
            int(expires_at.timestamp()), int(by.total_seconds()), body.meta_etag, name,
            0 if state_expires_at is None else int(state_expires_at.timestamp()),
        )  # fmt: skip
        return named_answer(answer, name)

    async def _stats(self, request: web.Request, name: str) -> web.Response:
        body = await request_parsing.json_body(request, StatsBody)
        namespace, queue = _checked_names(body.namespace, body.queue)
        jobs = self.service.jobs(namespace)
        counts = await jobs.counts()
        count = next((each for each in counts.queues if each.queue == queue), QueueCount(queue))
        head = next(iter(await jobs.page(JobState.READY, JobFilter(queue=queue), None, 1)), None)
        answer = Stats(
            namespace=namespace,
            queue=queue,
            waiting_consumers=jobs.waiting,
            pending_candidates=count.ready + count.scheduled,
            total_consumers=jobs.waiting,
            has_active_watcher=False,
            available=count.ready > 0,
            correlation_id=name,
        )
        if head is not None:
            answer.head_message_id, answer.head_enqueued_at_unix = head.id, int(head.created_at.timestamp())
            answer.head_not_visible_until_unix = int((head.not_before or head.created_at).timestamp())
            answer.head_age_seconds = max(0, int((counts.at - head.created_at).total_seconds()))
        return named_answer(answer, name)

    async def _running(self, body: MessageBody) -> tuple[ConsumerProof, JobInfo]:
        """The message and its state; refuses a caller whose claim it is not."""
        proof = self._proof(body, etag=True)
        found = await self.service.running(proof)
        if isinstance(found, str):
            raise _refused(found)
        return proof, found

    def _proof(self, body: MessageBody, *, etag: bool = False) -> ConsumerProof:
        namespace, queue = _checked_names(body.namespace, body.queue)
        if not body.message_id or not body.lease_id or (etag and not body.meta_etag):
            raise WireError("missing_fields", "message_id, lease_id and meta_etag are needed")
        request_parsing.checked_transaction(body.txn_id, "invalid_txn")
        nonce, _, how = body.lease_id.partition("-")
        claim = Claim(body.message_id, body.fencing_token, nonce)
        if body.meta_etag and body.meta_etag != _etag(claim):
            raise _refused("cas_mismatch")
        state = None
        if body.state_lease_id:
            key = checked_key(state_key(queue, body.message_id), namespace)
            state = presented_lease(namespace, key, body.state_lease_id, body.state_fencing_token, body.state_txn_id)
        return ConsumerProof(namespace, queue, claim, state, STATEFUL in how, JOINED in how, body.txn_id)

    def _message(
        self,
        namespace: str,
        claimed: ClaimedJob,
        visibility: timedelta,
        name: str,
        leased: KeyRecord | None,
        joined: str,
    ) -> DeliveredMessage:
        job, claim = claimed.job, claimed.claim
        how = (STATEFUL if leased is not None else "") + (JOINED if joined else "")
        attributes = job.headers.get(ATTRIBUTES_HEADER, "")
        message = DeliveredMessage(
            namespace=namespace,
            queue=job.queue,
            message_id=job.id,
            attempts=claimed.attempt,
            max_attempts=attempts_of(job),
            failure_attempts=claimed.failures + claimed.rescues,
            not_visible_until_unix=int(claimed.deadline.timestamp()),
            visibility_timeout_seconds=int(visibility.total_seconds()),
            attributes=msgspec.Raw(attributes.encode()) if attributes else None,
            payload_content_type=job.headers.get(TYPE_HEADER, "application/octet-stream"),
            payload_bytes=len(job.payload),
            correlation_id=name,
            lease_id=f"{claim.nonce}-{how}" if how else claim.nonce,
            lease_expires_at_unix=int(claimed.deadline.timestamp()),
            fencing_token=claim.token,
            txn_id=joined or self._xids.new(),
            meta_etag=_etag(claim),
        )
        if leased is not None:
            lease = leased.granted
            message.state_etag, message.state_lease_id = leased.etag, lease.id
            message.state_lease_expires_at_unix = int(lease.expires_at.timestamp())
            message.state_fencing_token, message.state_txn_id = lease.token, lease.transaction
        return message


def _checked_names(namespace: str, queue: str) -> tuple[str, str]:
    if not queue:
        raise WireError("missing_queue", "queue is missing")
    name = allowed_namespace(namespace)
    checked = checked_key(queue)
    if "/" in checked or len(checked) > QUEUE_CHARS_MAX:
        raise WireError("invalid_queue", f"a queue has at most {QUEUE_CHARS_MAX} characters and no slash")
    return name, checked


def _checked(seconds: int) -> None:
    if not 0 <= seconds <= SECONDS_MAX:
        raise WireError("invalid_body", f"a number is not between 0 and {SECONDS_MAX}")


def _error(body: MessageBody) -> str:
    text = bytes(body.last_error)
    if text in (b"", b"null"):
        return ""
    return (request_parsing.decoded(text, str, "last_error") if text.startswith(b'"') else text.decode())[
        :ERROR_CHARS_MAX
    ]


def _etag(claim: Claim) -> str:
    """The message's etag, constant while one consumer has it."""
    return f"{claim.token}-{claim.nonce}"


def _refused(code: str) -> WireError:
    status, text = _REFUSALS[code]
    return WireError(code, text, status=status)
