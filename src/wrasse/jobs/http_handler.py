"""URLs as handlers: the payload is sent by HTTP POST, so that any HTTP server can run jobs.

2xx is success, and the body is the result. 4xx is a refusal: the job is dead-lettered, or fails if the settings say so.
Everything else is a failure, as are broken connections and those 4xx that concern the address, the credentials or the
moment rather than the job; it is retried after a delay: that of `Retry-After`, if given. The job's time limit is the
limit of the request, and a job that is cancelled or rescued closes its connection.

The request goes to the configured host only: a redirect is followed only if it leads to the same scheme, host and port
and keeps the method. Errors name the host and the status, never the whole URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from wrasse.clock import Clock
from wrasse.errors import JobFailed, OutOfResources, TooLarge, exhausted
from wrasse.jobs.handler_name import check_url
from wrasse.jobs.retry import GiveUp, RetryLater
from wrasse.jobs.trace import CURRENT, parent_of
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.ports.jobs import ERROR_CHARS_MAX, PAYLOAD_BYTES_MAX

REDIRECTS_MAX = 5
REFUSAL_BYTES_MAX = 64 << 10
"""How many bytes of an answer other than 2xx are read; of a 2xx `PAYLOAD_BYTES_MAX`, as of any result."""
RETRY_AFTER_MAX = timedelta(days=1)
_IDLE_MAX = 2.0  # seconds an idle connection is kept: shorter than servers do, so that none is closed as it is used
_DETAIL_CHARS_MAX = 500  # of the body of a refusal
_RETRYABLE = (401, 403, 404, 407, 408, 421, 425, 429)
_UNQUOTED = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_REDIRECTS = (307, 308)  # redirects that keep method and body


@dataclass(frozen=True, slots=True)
class HttpHandlerSettings:
    """Settings of all URLs. `dead_letter_refused`: a job that is answered with 4xx is dead at once."""

    dead_letter_refused: bool = True
    authorization: str = ""
    connect_timeout: timedelta = timedelta(seconds=10)


_DEFAULTS = HttpHandlerSettings()


class HttpHandler:
    """A handler that sends each job to a URL. Connections are opened on first use and kept until `close`."""

    def __init__(self, url: str, clock: Clock, settings: HttpHandlerSettings = _DEFAULTS) -> None:
        check_url(url)
        self._url = URL(url).with_fragment(None)
        self._clock = clock
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, job: RunningJob) -> bytes | None:
        """Posts the job; returns the body of a 2xx answer, raises for any other."""
        url, headers = self._url, self._headers(job)
        for _ in range(REDIRECTS_MAX + 1):
            answer = await self._post(url, job.payload, headers)
            if answer.status not in _REDIRECTS or not answer.location:
                return self._result(answer)
            url = self._same_host(url, answer)
        raise JobFailed(f"{self._where} answered with more than {REDIRECTS_MAX} redirects")

    async def close(self) -> None:
        """Closes the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _same_host(self, url: URL, answer: _HttpAnswer) -> URL:
        try:
            target = url.join(URL(answer.location))
            same = target.origin() == self._url.origin()
        except ValueError:
            same = False
        if not same:
            raise JobFailed(f"{self._where} answered {answer.status}, a redirect to elsewhere, which is not followed")
        return target

    @property
    def _where(self) -> str:
        return f"{self._url.host}:{self._url.port}"

    def _headers(self, job: RunningJob) -> Mapping[str, str]:
        trace = CURRENT.get() or parent_of(job.headers)
        headers = {
            "Content-Type": job.headers.get("content-type") or _content_type(job.payload),
            "Wrasse-Job-Id": job.id,
            "Wrasse-Kind": job.kind,
            "Wrasse-Queue": job.queue,
            "Wrasse-Priority": job.priority,
            "Wrasse-Attempt": str(job.attempt),
            "Wrasse-Token": str(job.token),
            "traceparent": str(trace) if trace else "",
        }
        # Ids and names may hold any printable character, a header only those of ASCII.
        return {name: quote(value, safe=_UNQUOTED) for name, value in headers.items() if value}

    async def _post(self, url: URL, payload: bytes, headers: Mapping[str, str]) -> _HttpAnswer:
        try:
            session = self._session or self._open()
            async with session.post(url, data=payload, headers=headers, allow_redirects=False) as answer:
                return await _read(answer, self._where)
        except aiohttp.ClientError as error:
            reason = error.strerror if isinstance(error, aiohttp.ClientOSError) and error.strerror else ""
            if exhausted(error):
                raise OutOfResources(f"{self._where} could not be reached: {reason}", do="raise the limits") from None
            raise JobFailed(f"{self._where} could not be reached: {type(error).__name__} {reason}".rstrip()) from None
        except TimeoutError:
            raise JobFailed(f"{self._where} did not accept the connection in time") from None

    def _open(self) -> aiohttp.ClientSession:
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self._settings.connect_timeout.total_seconds())
        secret = self._settings.authorization
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_MAX),  # the worker's slots are the limit
            timeout=limit,
            # Without decompression an answer has as many bytes as were sent.
            headers={
                "User-Agent": "wrasse",
                "Accept-Encoding": "identity",
                **({"Authorization": secret} if secret else {}),
            },
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self._session

    def _result(self, answer: _HttpAnswer) -> bytes | None:
        if 200 <= answer.status < 300:
            return answer.body or None
        detail = answer.body[: 4 * _DETAIL_CHARS_MAX].decode(errors="replace").strip()[:_DETAIL_CHARS_MAX]
        text = f"{self._where} answered {answer.status}" + (f": {detail}" if detail else "")
        if 400 <= answer.status < 500 and answer.status not in _RETRYABLE and self._settings.dead_letter_refused:
            raise GiveUp(text[:ERROR_CHARS_MAX])
        later = retry_after(answer.retry_after, self._clock.now())
        if later is not None:
            raise RetryLater(later, text)
        raise JobFailed(text)


@dataclass(frozen=True, slots=True)
class _HttpAnswer:
    status: int
    body: bytes
    location: str
    retry_after: str


async def _read(answer: aiohttp.ClientResponse, where: str) -> _HttpAnswer:
    """The answer with its body, read up to the largest size of a result."""
    encoding = answer.headers.get("Content-Encoding", "identity")
    if answer.ok and encoding.lower() != "identity":
        answer.close()
        raise JobFailed(f"{where} answered in the encoding {encoding[:40]!r} although identity was asked for")
    pieces: list[bytes] = []
    size = 0
    async for piece in answer.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > (PAYLOAD_BYTES_MAX if answer.ok else REFUSAL_BYTES_MAX):
            answer.close()
            if answer.ok:
                raise TooLarge(f"{where} answered more than {PAYLOAD_BYTES_MAX} bytes", do="answer with less")
            break
    headers = answer.headers
    return _HttpAnswer(answer.status, b"".join(pieces), headers.get("Location", ""), headers.get("Retry-After", ""))


def _content_type(payload: bytes) -> str:
    try:
        msgspec.json.decode(payload, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "application/octet-stream"
    return "application/json"


def retry_after(text: str, now: datetime) -> timedelta | None:
    """The delay of a Retry-After: seconds, or a date. None if it cannot be parsed."""
    text = text.strip()
    if text.isdecimal() and text.isascii():
        return min(timedelta(seconds=min(int(text[:10]), 10**9)), RETRY_AFTER_MAX)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if at.tzinfo is None:
        return None
    return min(max(at - now, timedelta(0)), RETRY_AFTER_MAX)
