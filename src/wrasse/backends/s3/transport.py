"""One request to the store: signed, sent, answered or not. The only place that knows the HTTP client and its errors.

A read, or a change that is safe to repeat, is retried with growing pauses while the store is slow, throttles or does
not answer. A conditional change is sent once: if its reply is lost its outcome is unknown (`NoAnswer`), and its caller
reads back before it sends it again.

The store is not trusted. One deadline covers connection, headers and body; it is extended by the time that the bytes
moved take at a minimum rate. Bodies are read up to a limit and never decompressed, redirects are not followed and
cookies are not kept.

Requests are signed by AWS Signature Version 4, with the first credentials that are found: in the URL, the environment,
the profile file, and botocore's chain if it is installed. Temporary ones are fetched again a few minutes before they
expire. The time of a signature is the store's: the local clock, corrected by the `Date` of replies.
"""

from __future__ import annotations

import asyncio
import configparser
import hashlib
import hmac
import os
import random
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import aiohttp
from yarl import URL

from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.xml import XML_BYTES_MAX, S3Denied, S3Failure, failure_of, parse_date, unavailable
from wrasse.clock import Clock
from wrasse.errors import ConfigError, StoreBroken, StoreUnavailable, WrasseError, reason_of
from wrasse.ports.rules.request_counts import note_request

TRIES = 5
"""Tries of a request that is safe to repeat."""
PAUSE = 0.1  # seconds before the second try; doubles
PAUSE_MAX = 5.0
CONNECTIONS_MAX = 64
"""Connections to one bucket."""
CONNECT_MAX = 5.0
"""Seconds to connect."""
SILENCE_MAX = 30.0
"""Seconds in which a store may send no byte."""
REQUEST_MAX = 60.0
"""Seconds for one request and its answer with the body, plus what `RATE_MIN` allows for the bytes moved."""
RATE_MIN = 32 << 10
"""Bytes a second: the slowest transfer that is not cut off once `REQUEST_MAX` is used up."""
ANSWER_BYTES_MAX = XML_BYTES_MAX
"""Bytes of an answer that is read as a whole: listings, other XML, records. Objects are streamed."""
ERROR_BYTES_MAX = 64 << 10
"""Bytes of a refusal that are read; the rest is left unread and the connection closed."""
SKEW_MAX = timedelta(minutes=5)  # stores refuse signatures that are older than 5 to 15 minutes
_HASH_ASIDE = 1 << 20  # bytes from which hashing runs in a thread, to keep the event loop free
_TRY_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_PIECE = 256 << 10
MARGIN = timedelta(seconds=1)  # the resolution of a Date
EMPTY_HASH = hashlib.sha256(b"").hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"
_DEFAULT_REGION = "us-east-1"
_RENEWED_AHEAD = timedelta(minutes=5)  # before temporary credentials expire
_CHAIN_KEPT = timedelta(minutes=10)  # how long credentials of botocore are cached
_DRIFT = timedelta(milliseconds=1)  # by which an old bound of the offset widens with every reply
NO_HEADERS: Mapping[str, str] = {}
T = TypeVar("T")


class NoAnswer(Exception):
    """A change was sent, and its outcome is unknown. Never leaves this package."""

    def __init__(self, why: WrasseError) -> None:
        super().__init__(why.message)
        self.why = why


@dataclass(frozen=True, slots=True)
class S3Request:
    """One request. `twice`: it is safe to repeat."""

    method: str
    key: bytes | None = None  # None: the bucket itself
    query: tuple[tuple[str, str | bytes], ...] = ()
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)  # names in lower case
    body: bytes = b""
    twice: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that is not one of the failures raised as errors."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    at: datetime


class Deadline:
    """The time left for one request. Waiting for the store counts, the reader's own work does not."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    async def wait(self, what: Awaitable[T]) -> T:
        """Waits for this; TimeoutError at the deadline."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._left):
                return await what
        finally:
            self._left -= loop.time() - began

    def moved(self, size: int) -> None:
        """Extends the deadline for these bytes."""
        self._left += size / RATE_MIN

    def cut(self, seconds: float) -> None:
        """Limits the rest: time that a fast upload did not use is not added to the wait for the answer."""
        self._left = min(self._left, seconds)


class Body:
    """The body of an answer, streamed, up to a limit that its reader may change."""

    def __init__(self, response: aiohttp.ClientResponse, deadline: Deadline, where: str) -> None:
        self._response, self._deadline, self._where = response, deadline, where
        self._received = 0
        self.limit = ANSWER_BYTES_MAX

    async def next(self, size: int) -> bytes:
        """At most `size` bytes, none at the end. Raises StoreBroken beyond the limit."""
        with _named(self._where):
            piece = await self._deadline.wait(self._response.content.read(size))
        self._deadline.moved(len(piece))
        self._received += len(piece)
        if self._received > self.limit:
            raise StoreBroken(
                f"{self._where} answered with more than {self.limit} bytes", do="check that the endpoint is an S3"
            )
        return piece

    async def all(self) -> bytes:
        """The whole body; of a refusal the beginning."""
        refused = self._response.status >= 300
        pieces: list[bytes] = []
        while piece := await self.next(_PIECE):
            pieces.append(piece)
            if refused and self._received >= ERROR_BYTES_MAX:
                break
        return b"".join(pieces)


class S3Transport:
    """The requests of one bucket, over a bounded number of connections."""

    def __init__(
        self,
        address: S3Address,
        clock: Clock,
        *,
        tries: int = TRIES,
        silence_max: float = SILENCE_MAX,
        request_max: float = REQUEST_MAX,
    ) -> None:
        address = address.reached()
        self.address = address
        self.requests = 0
        self._clock = clock
        self.time = StoreClock(clock)
        self._credential_source = CredentialSource(address, clock)
        region = self._credential_source.region()
        self._signer = Signer(region)
        self._origin = address.origin(region)
        self._tries = tries
        self._silence_max = silence_max
        self._request_max = request_max
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def ask(self, ask: S3Request) -> Reply:
        """The reply. Raises NoAnswer for a change with an unknown outcome, and our errors for failures."""
        tries = self._tries if ask.twice else 1
        for attempt in range(1, tries + 1):
            try:
                believed = self.time.offset
                reply = await self._once(ask)
                if reply.status == 403 and abs(self.time.offset - believed) > SKEW_MAX:
                    # Refused because of the clock, and not executed; the reply had the store's time: sign again by
                    # that.
                    reply = await self._once(ask)
                failure = failure_of(reply.status, reply.headers, reply.body)
                if reply.status not in _TRY_AGAIN:
                    return self._good(ask, reply, failure)
                raise unavailable(str(self.address), reply.status, failure)
            except (StoreUnavailable, StoreBroken) as why:
                if not ask.twice and not isinstance(why, S3Denied):
                    raise NoAnswer(why) from why
                if attempt == tries or isinstance(why, S3Denied | StoreBroken):
                    raise
            await asyncio.sleep(pause(attempt))
        raise AssertionError("the last try returns or raises")

    @asynccontextmanager
    async def stream(self, ask: S3Request) -> AsyncIterator[tuple[Reply, Body]]:
        """A reply whose body is read in chunks; one try. Errors while reading are StoreUnavailable."""
        async with self._send(ask) as (reply, body):
            if reply.status >= 300:
                reply = replace(reply, body=await body.all())
                failure = failure_of(reply.status, reply.headers, reply.body)
                if reply.status in _TRY_AGAIN:
                    raise unavailable(str(self.address), reply.status, failure)
                reply = self._good(ask, reply, failure)
            yield reply, body

    async def close(self) -> None:
        """Closes the connections."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _good(self, ask: S3Request, reply: Reply, failure: S3Failure | None) -> Reply:
        if failure is not None and (error := failure.error(self.address, ask.key is not None)) is not None:
            raise error
        return reply

    async def _once(self, ask: S3Request) -> Reply:
        async with self._send(ask) as (reply, body):
            return replace(reply, body=await body.all())

    @asynccontextmanager
    async def _send(self, ask: S3Request) -> AsyncIterator[tuple[Reply, Body]]:
        who = await self._credential_source.credentials()
        path = self._origin.path + ("" if ask.key is None else f"/{quoted(ask.key)}")
        query = query_of(ask.query)
        unsigned = Unsigned(ask.method, self._origin.host, path or "/", query, ask.headers, await _hash(ask.body))
        headers = self._signer.headers(unsigned, who, self.time.now())
        if ask.body:
            headers["content-length"] = str(len(ask.body))  # not signed; without it the body would be sent chunked
        url = URL(f"{self._origin.scheme}://{self._origin.host}{path or '/'}" + f"?{query}" * bool(query), encoded=True)
        self.requests += 1
        note_request()
        sent_at = self._clock.now()
        deadline = Deadline(self._request_max)
        deadline.moved(len(ask.body))
        with _named(str(self.address)):
            response = await deadline.wait(
                self._opened().request(ask.method, url, data=_payload(ask.body), headers=headers, allow_redirects=False)
            )
        deadline.cut(self._request_max)
        async with response:
            self.time.learn(response.headers.get("Date"), sent_at, self._clock.now())
            body = Body(response, deadline, str(self.address))
            names = {name.lower(): value for name, value in response.headers.items()}
            yield Reply(response.status, names, b"", self.time.now()), body

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise StoreUnavailable(
                f"{self.address} is closed", do="open it again; a store serves until its close() and not after"
            )
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ttl_dns_cache=60),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_MAX, sock_read=self._silence_max, connect=self._request_max
                ),
                auto_decompress=False,  # objects are returned as they are stored
                skip_auto_headers=("User-Agent", "Content-Type", "Accept-Encoding", "Accept"),
                requote_redirect_url=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(_sent_once,),
            )
        return self._session


async def _sent_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """aiohttp sends a PUT or DELETE again when a kept-alive connection breaks, even after it was executed. It does so
    on these two errors only, inside of which middlewares run: here they become another error, which it passes on."""
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _Broken from error


class _Broken(aiohttp.ClientError):
    """A connection broke, or could not be made; the cause has the reason."""


class _named:
    """Turns the errors of the client into ours, with the store's name."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, TimeoutError):
            raise StoreUnavailable(
                f"{self._where} did not answer in time", do="check the endpoint and the network"
            ) from error
        if isinstance(error, aiohttp.ClientError | OSError):
            error = error.__cause__ if isinstance(error, _Broken) else error
            said = reason_of(error) if isinstance(error, OSError) else type(error).__name__
            raise StoreUnavailable(
                f"{self._where} cannot be reached ({said})", do="check the endpoint and the network"
            ) from error


def pause(attempt: int) -> float:
    """Seconds to wait after the nth try: growing, with a random factor so that processes differ."""
    longest: float = min(PAUSE * 2 ** (attempt - 1), PAUSE_MAX)
    return longest * random.uniform(0.5, 1.0)


def _payload(body: bytes) -> bytes | AsyncIterator[memoryview] | None:
    return _pieces(body) if len(body) >= _HASH_ASIDE else body or None


async def _pieces(body: bytes) -> AsyncIterator[memoryview]:
    """A large body in pieces, so that other tasks run in between; no byte of it is copied."""
    for begin in range(0, len(body), _PIECE):
        yield memoryview(body)[begin : begin + _PIECE]
        await asyncio.sleep(0)


async def _hash(body: bytes) -> str:
    if not body:
        return EMPTY_HASH
    if len(body) < _HASH_ASIDE:
        return hashlib.sha256(body).hexdigest()
    return await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())


class StoreClock:
    """The store's time.

    A reply has it in whole seconds, so it bounds the offset of the two clocks to a second plus the duration of the
    request. While the local clock is within the bounds it is used unchanged; outside, it is moved to the nearer one."""

    def __init__(self, local: Clock) -> None:
        self._local = local
        self._low: timedelta | None = None
        self._high: timedelta | None = None

    def now(self) -> datetime:
        """The best estimate of the store's time."""
        return self._local.now() + self.offset

    @property
    def offset(self) -> timedelta:
        """How far the store's clock is ahead of the local one."""
        if self._low is None or self._high is None:
            return timedelta(0)
        return min(max(timedelta(0), self._low), self._high)

    def learn(self, date: str | None, sent_at: datetime, received_at: datetime) -> None:
        """Notes the Date of a reply to a request that was sent and answered at these local times."""
        try:
            said = parse_date(date or "")
        except ValueError:
            return
        low, high = said - received_at, said + MARGIN - sent_at
        if self._low is None or self._high is None or low > self._high or high < self._low:
            self._low, self._high = low, high  # a clock was set: the earlier bounds are invalid
            return
        self._low, self._high = max(low, self._low - _DRIFT), min(high, self._high + _DRIFT)


class CredentialSource:
    """The credentials of one bucket, cached until they expire."""

    def __init__(self, address: S3Address, clock: Clock, environ: Mapping[str, str] | None = None) -> None:
        self._address = address
        self._clock = clock
        self._environ = os.environ if environ is None else environ
        self._kept: Credentials | None = None

    def region(self) -> str:
        """The region: of the URL, the environment, the profile, or AWS's first."""
        named = self._address.region or self._environ.get("AWS_REGION") or self._environ.get("AWS_DEFAULT_REGION")
        return named or self._profile_value("region") or _DEFAULT_REGION

    async def credentials(self) -> Credentials:
        """Those to sign with now."""
        kept = self._kept
        if kept is not None and (kept.until is None or self._clock.now() < kept.until - _RENEWED_AHEAD):
            return kept
        fresh = self._static()
        if fresh is None:
            fresh = await asyncio.to_thread(self._chain)
        self._kept = fresh
        return fresh

    def _static(self) -> Credentials | None:
        address, environ = self._address, self._environ
        if address.access_key:
            return Credentials(address.access_key, address.secret_key, address.session_token)
        if not address.profile and environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
            token = environ.get("AWS_SESSION_TOKEN", "")
            return Credentials(environ["AWS_ACCESS_KEY_ID"], environ["AWS_SECRET_ACCESS_KEY"], token)
        key, secret = self._profile_value("aws_access_key_id"), self._profile_value("aws_secret_access_key")
        return Credentials(key, secret, self._profile_value("aws_session_token")) if key and secret else None

    def _profile_value(self, name: str) -> str:
        profile = self._address.profile or self._environ.get("AWS_PROFILE") or "default"
        home = Path(self._environ.get("HOME", "~")).expanduser()
        places = (
            (self._environ.get("AWS_SHARED_CREDENTIALS_FILE") or str(home / ".aws" / "credentials"), profile),
            (
                self._environ.get("AWS_CONFIG_FILE") or str(home / ".aws" / "config"),
                profile if profile == "default" else f"profile {profile}",
            ),
        )
        for file, section in places:
            read = configparser.RawConfigParser()
            try:
                read.read(file)
            except (configparser.Error, OSError, UnicodeDecodeError):
                raise ConfigError(
                    "the file of AWS profiles cannot be read", do="correct it, or set AWS_ACCESS_KEY_ID and its secret"
                ) from None
            if read.has_option(section, name):
                return read.get(section, name).strip()
        return ""

    def _chain(self) -> Credentials:
        """The credentials that botocore finds: single sign-on, roles, the machine's own. It blocks, so it runs in a
        thread."""
        try:
            import botocore.exceptions  # type: ignore[import-untyped]
            import botocore.session  # type: ignore[import-untyped]
        except ImportError:
            raise self._no_credentials() from None
        try:
            found = botocore.session.Session(profile=self._address.profile or None).get_credentials()
            frozen = None if found is None else found.get_frozen_credentials()
        except botocore.exceptions.BotoCoreError as why:
            raise ConfigError(
                f"the credentials for {self._address} cannot be fetched ({type(why).__name__})",
                do="check the profile, or log in again",
            ) from why
        if frozen is None:
            raise self._no_credentials()
        # botocore renews expiring credentials itself when it is called again.
        until = self._clock.now() + _CHAIN_KEPT
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token or "", until)

    def _no_credentials(self) -> ConfigError:
        return ConfigError(
            f"there are no credentials for {self._address}",
            do="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for single sign-on and roles install "
            "wrasse[aws]",
        )


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key. Its text form has no secrets."""

    key: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)
    until: datetime | None = None  # when they must be fetched again


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A request without the headers that the signature adds."""

    method: str
    host: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    payload_hash: str = EMPTY_HASH


class Signer:
    """Signs for one region and service; caches the day's key, since deriving it costs more than using it. Path and
    query are sent byte for byte as they were signed: no later code may quote them again."""

    def __init__(self, region: str, service: str = "s3") -> None:
        self._region = region
        self._service = service
        self._kept: tuple[tuple[str, str], bytes] = (("", ""), b"")

    def headers(self, request: Unsigned, who: Credentials, at: datetime) -> dict[str, str]:
        """All headers to send with the request."""
        moment = at.strftime("%Y%m%dT%H%M%SZ")
        headers = {**request.headers, "host": request.host, "x-amz-date": moment}
        if self._service == "s3":
            headers["x-amz-content-sha256"] = request.payload_hash
        if who.token:
            headers["x-amz-security-token"] = who.token
        names = sorted(headers)
        signed = ";".join(names)
        lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in names)
        canonical = f"{request.method}\n{request.path}\n{request.query}\n{lines}\n{signed}\n{request.payload_hash}"
        scope = f"{moment[:8]}/{self._region}/{self._service}/aws4_request"
        text = f"{_ALGORITHM}\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.new(self._key(who.secret, moment[:8]), text.encode(), hashlib.sha256).hexdigest()
        headers["authorization"] = (
            f"{_ALGORITHM} Credential={who.key}/{scope}, SignedHeaders={signed}, Signature={signature}"
        )
        return headers

    def _key(self, secret: str, day: str) -> bytes:
        if self._kept[0] != (secret, day):
            key = b"AWS4" + secret.encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.new(key, part.encode(), hashlib.sha256).digest()
            self._kept = ((secret, day), key)
        return self._kept[1]


def quoted(raw: bytes) -> str:
    """A key in a path: slashes stay, every other byte that is not plain is escaped."""
    return quote(raw, safe="-_.~/")


def query_of(pairs: Iterable[tuple[str, str | bytes]]) -> str:
    """A query string in the order of the signature."""
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(pairs))
