"""`client.py` over redis-py, for features that our client does not have: credential providers (IAM, Entra ID), proxies,
and clients that a program makes itself. `redis.client: redis-py`, or `module:callable` that returns a
`redis.asyncio.Redis`.

Commands are packed and read on connections of its pool: nothing of redis-py retries a command or changes a reply. Its
parser gets a reader that ends a connection whose replies exceed our limits, or announce too long an array. A Cluster is
refused: our client finds the one node that a root needs, redis-py's cluster client has no connection to read from.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import weakref
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import (
    ARRAY_MAX,
    HUGE_ANYWHERE,
    REPLIES_MAX,
    Oversized,
    RedisRefusal,
    Word,
    announces_huge,
    cost_of,
    pack,
    whole_lines,
)
from wrasse.backends.redis.failure import keys_of, ours
from wrasse.backends.redis.options import OWN_CLIENT, REDIS_PY, RedisOptions
from wrasse.backends.redis.scripts import Script
from wrasse.backends.tcp import ConnectionLost, printable
from wrasse.clock import Clock
from wrasse.errors import ConfigError, StoreUnavailable

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.connection import AbstractConnection

_PAUSE = 0.02


class RedisPyClient(RedisClient):
    """Made by `open`. It serves the event loop that opened it, until `close`."""

    def __init__(self, options: RedisOptions, client: Redis, time: Clock | None = None) -> None:
        super().__init__(options, time)
        self._client = client
        self._pool = client.connection_pool
        for each in (client, *self._sentinels):
            each.connection_pool.connection_kwargs["parser_class"] = _bounded_parser()
        self._connected = 0
        self._watched: weakref.WeakSet[AbstractConnection] = weakref.WeakSet()

    @classmethod
    async def open(cls, options: RedisOptions, time: Clock | None = None) -> RedisPyClient:
        """A client that has been connected once."""
        client = cls(options, _client(options), time)
        try:
            await client.ask("PING")
        except BaseException:
            await client.close()
            raise
        return client

    @property
    def connections(self) -> int:
        """Grows with every connection."""
        return self._connected

    async def run(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Word] = ()) -> Any:
        """Runs the script once."""
        told = self.told
        (answer,) = await self._exchange(pack(("EVALSHA", script.sha, len(keys), *keys, told, *args)), 1)
        if isinstance(answer, RedisRefusal) and answer.code == "NOSCRIPT":
            (answer,) = await self._exchange(pack(("EVAL", script.text, len(keys), *keys, told, *args)), 1)
        return self._accepted(answer, keys)

    async def together(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Runs commands atomically, once."""
        packed = b"".join([pack(each) for each in (("MULTI",), *commands, ("EXEC",))])
        answers = await self._exchange(packed, len(commands) + 2)
        refusal = next((answer for answer in answers if isinstance(answer, RedisRefusal)), None)
        done = self._accepted(answers[-1] if refusal is None else refusal)
        if not isinstance(done, list):
            raise ours(ConnectionLost("the answer to EXEC is not a list"), self.options.where)
        return done

    async def ask_many(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Several reads in one round trip; repeated if an answer is lost."""
        if not commands:
            return []
        packed = b"".join([pack(each) for each in commands])
        for attempt in range(self.options.max_retries + 1):
            try:
                return [self._accepted(each, keys_of(commands)) for each in await self._exchange(packed, len(commands))]
            except StoreUnavailable:
                if attempt == self.options.max_retries:
                    raise
                await asyncio.sleep(_PAUSE * 2**attempt)
        raise AssertionError("the last attempt answers or raises")

    async def block(self, *command: Word, timeout: float) -> Any:
        """A command that blocks at the server for at most `timeout` seconds; never repeated."""
        async with self._require_free_connection(timeout):
            (answer,) = await self._exchange(pack(command), 1, timeout)
        return self._accepted(answer)

    async def close(self) -> None:
        """Ends all connections."""
        await self._client.aclose(close_connection_pool=True)
        for sentinel in self._sentinels:
            await sentinel.aclose()

    @property
    def _sentinels(self) -> Sequence[Redis]:
        found: Sequence[Redis] = getattr(getattr(self._pool, "sentinel_manager", None), "sentinels", ())
        return found

    def _accepted(self, answer: Any, keys: Sequence[str | bytes] = ()) -> Any:
        if isinstance(answer, RedisRefusal):
            raise ours(answer, self.options.where, keys) from answer
        return answer

    async def _exchange(self, packed: bytes, count: int, waits: float = 0.0) -> list[Any]:
        """Sends once; returns as many replies, refusals among them. A connection that is not read to the end is
        closed."""
        seconds = self.options.read_timeout.total_seconds() + waits
        _ROOM.set(_ReplyAllowance(self.options.reply_bytes_max, REPLIES_MAX if count > 1 else 1))
        async with self._connection() as connection:
            try:
                async with asyncio.timeout(seconds):
                    await _send(connection, packed)
                    answers = [await _reply(connection) for _ in range(count)]
                    self.replies += 1
                    return answers
            except BaseException as error:
                await connection.disconnect(nowait=True)
                if isinstance(error, TimeoutError):
                    raise ours(ConnectionLost(f"no answer within {seconds:g}s"), self.options.where) from None
                if isinstance(error, Exception):
                    raise self._failure(error) from error
                raise

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AbstractConnection]:
        try:
            async with asyncio.timeout(self.options.dial_timeout.total_seconds()):
                connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        except TimeoutError as error:
            raise ours(error, self.options.where) from error
        except Exception as error:  # of redis-py, or of a credential provider
            raise self._failure(error) from error
        if connection not in self._watched:
            self._watched.add(connection)
            connection.register_connect_callback(self._count)
            self._connected += 1
        try:
            yield connection
        finally:
            await self._pool.release(connection)

    def _count(self, _: AbstractConnection) -> None:
        self._connected += 1

    def _failure(self, error: Exception) -> Exception:
        from redis.exceptions import RedisError, ResponseError

        if isinstance(error, ResponseError) or getattr(error, "status_code", None):
            return ours(_refusal(error), self.options.where)
        if isinstance(error, ConnectionLost):
            return ours(error, self.options.where)
        if isinstance(error, RedisError):
            cause = error.__cause__ or error.__context__
            met = cause if isinstance(cause, OSError) else ConnectionLost(printable(str(error), 200))
            return ours(met, self.options.where)
        # A credential provider's own error: its text may have a secret.
        return StoreUnavailable(
            f"redis-py could not connect to {self.options.where}: {type(error).__name__}",
            do="check redis.credential_provider, or what makes the client",
        )


class _ReplyAllowance:
    """How many bytes the replies to one request may still have."""

    def __init__(self, largest: int, times: int) -> None:
        self._largest, self._times, self._used = largest, times, 0

    def spend(self, data: bytes) -> None:
        self._used += cost_of(data, self._used)
        if self._used > self._largest * self._times:
            what = "a reply beyond" if self._times == 1 else f"replies beyond {self._times} times"
            raise Oversized(f"{what} redis.reply_bytes_max ({self._largest} bytes)")


_ROOM: ContextVar[_ReplyAllowance] = ContextVar("room")


class _BoundedReader:
    """hiredis's reader as redis-py's parser uses it. It is fed no more bytes than allowed, and no line of an array that
    is too long: hiredis would allocate as many elements as the line announces."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._nothing = reader.gets()  # its result while no reply is complete
        self._held_back = b""
        self._answers: deque[Any] = deque()

    def feed(self, data: bytes) -> None:
        if (allowance := _ROOM.get(None)) is not None:
            allowance.spend(data)
        data, self._held_back = whole_lines(self._held_back + data)
        at = 0
        for found in HUGE_ANYWHERE.finditer(data) if announces_huge(data) else ():
            self._reader.feed(data[at : found.start()])
            at = found.start()
            while (answer := self._reader.gets(False)) is not self._nothing:
                self._answers.append(answer)
            if not self._reader.has_data():  # else it is part of a value, as in transport.py
                raise ConnectionLost(f"an array of more than {ARRAY_MAX} elements")
        self._reader.feed(data[at:])

    def gets(self, *decode: bool) -> Any:
        return self._answers.popleft() if self._answers else self._reader.gets(*decode)

    def has_data(self) -> bool:
        return bool(self._answers or self._held_back or self._reader.has_data())


def _bounded_parser() -> type[Any]:
    from redis.asyncio import connection

    base: Any = connection.DefaultParser  # chosen when redis-py is imported: that of hiredis, which we need anyway

    class Parser(base):  # type: ignore[misc]
        _reader: Any

        def on_connect(self, connection: AbstractConnection) -> None:
            super().on_connect(connection)
            self._reader = _BoundedReader(self._reader)

    return Parser


async def _send(connection: AbstractConnection, packed: bytes) -> None:
    task = asyncio.current_task()
    assert task is not None, "this runs in a task"
    cancelled = task.cancelling()
    await connection.send_packed_command(packed, check_health=False)
    if task.cancelling() > cancelled:  # asyncio.wait_for of Python 3.11, which redis-py uses, may swallow it
        raise asyncio.CancelledError


async def _reply(connection: AbstractConnection) -> Any:
    from redis.exceptions import RedisError, ResponseError

    try:
        reply = await connection.read_response(disable_decoding=True, timeout=math.inf, disconnect_on_error=False)
    except RedisError as error:
        if isinstance(error, ResponseError) or getattr(error, "status_code", None):
            return _refusal(error)
        raise
    if isinstance(reply, list):
        return [_refusal(each) if isinstance(each, RedisError) else each for each in reply]
    return reply


def _refusal(error: Exception) -> RedisRefusal:
    """The server's own error text: redis-py removes the code from those that it knows."""
    code = getattr(error, "status_code", None)
    return RedisRefusal(f"{code} {error}" if code else str(error))


def _client(options: RedisOptions) -> Redis:
    try:
        import redis.asyncio as package
    except ImportError as error:
        raise ConfigError(
            f"redis.client is {options.client!r}, and redis-py is not installed", do="pip install 'wrasse[redis-py]'"
        ) from error
    if options.client != REDIS_PY:
        return _checked(_named(options.client, "redis.client"), package.Redis)
    provider = _named(options.credential_provider, "redis.credential_provider") if options.credential_provider else None
    settings = _settings(options) | {"credential_provider": provider}
    if not options.sentinel:
        ((host, port),) = options.nodes
        kind = package.SSLConnection if options.tls else package.Connection
        pool = package.BlockingConnectionPool(
            max_connections=options.pool_size + 1, timeout=options.read_timeout.total_seconds(), connection_class=kind,
            host=host, port=port, **settings,
        )  # fmt: skip
        return package.Redis(connection_pool=pool)
    from redis.asyncio.sentinel import Sentinel

    login = {"username": options.sentinel_username or None, "password": options.sentinel_password or None}
    asking = {name: settings[name] for name in ("socket_timeout", "socket_connect_timeout", "protocol")}
    if options.tls:
        asking |= {name: value for name, value in settings.items() if name.startswith("ssl")} | {"ssl": True}
        settings |= {"ssl": True}
    sentinels = Sentinel(options.nodes, sentinel_kwargs=asking | login, **settings)  # type: ignore[no-untyped-call]
    client: Redis = sentinels.master_for(options.sentinel)
    return client


def _settings(options: RedisOptions) -> dict[str, Any]:
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    made: dict[str, Any] = {
        "db": options.db,
        "username": options.username or None,
        "password": options.password or None,
        "socket_timeout": None,  # every exchange has its own timeout
        "socket_connect_timeout": options.dial_timeout.total_seconds(),
        "protocol": 2,
        "client_name": "wrasse",
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
    }
    if options.credential_provider:
        del made["username"], made["password"]
    if options.tls:
        made |= {
            "ssl_ca_certs": options.tls.ca or None, "ssl_certfile": options.tls.cert or None,
            "ssl_keyfile": options.tls.key or None, "ssl_check_hostname": options.tls.verify,
            "ssl_cert_reqs": "required" if options.tls.verify else "none",
        }  # fmt: skip
    return made


def _named(name: str, setting: str) -> Any:
    """What `module:callable` makes."""
    module, _, attribute = name.partition(":")
    try:
        make = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{setting} is {name!r}, and there is none: {error}", do="write module:callable") from error
    return make()


def _checked(client: Any, kind: type[Redis]) -> Redis:
    if not isinstance(client, kind):
        raise ConfigError(
            f"redis.client made a {type(client).__name__}, not a redis.asyncio.Redis",
            do=f"return one from the callable, or use {OWN_CLIENT!r} or {REDIS_PY!r}",
        )
    if client.connection_pool.connection_kwargs.get("protocol") not in (2, "2"):
        raise ConfigError("redis.client made a client that speaks RESP3", do="make it with protocol=2")
    return client
