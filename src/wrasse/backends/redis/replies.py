"""Detects replies that are well-formed RESP but do not answer the command: another program at that address, a proxy, a
malicious server. The ports read replies as the scripts write them, without checks; an error while reading is turned
into one of ours here.

An exception that a port method raises before the first reply is about its arguments, and is not changed; neither is one
of the client itself. `__cause__` keeps the original.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.failure import WrongType
from wrasse.backends.redis.key_types import KeyTypes
from wrasse.backends.redis.keys import RedisKeys
from wrasse.errors import StoreBroken

C = TypeVar("C")
# A StopIteration within a coroutine or a generator is a RuntimeError.
_UNREADABLE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, msgspec.MsgspecError)
_CLIENTS = (
    "wrasse.backends.redis.client.connection",
    "wrasse.backends.redis.client.redis_py",
    "wrasse.backends.redis.client.topology",
)


def reads_replies(port: type[C]) -> type[C]:
    """For a class with a `_client`: an unreadable reply in its public methods becomes StoreBroken."""
    for name, method in list(vars(port).items()):
        if inspect.iscoroutinefunction(method) and not name.startswith("_"):
            setattr(port, name, _reading(method))
    return port


def not_its_answer(client: RedisClient, what: str) -> StoreBroken:
    """The error for a reply that does not answer the command."""
    return StoreBroken(
        f"{client.options.where} answered {what} with an unreadable reply",
        do="check that redis.addr is the address of a Redis or Valkey, and that no proxy or other program changes its "
        "replies or its scripts; if it is and none does, report this with the error above",
    )


def _reading(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def reading(self: Any, *args: Any, **named: Any) -> Any:
        client: RedisClient = self._client
        before = client.replies
        try:
            return await method(self, *args, **named)
        except WrongType as error:
            if not error.keys:
                raise
            raise await KeyTypes(client, RedisKeys(client.options)).named(error) from error
        except _UNREADABLE as error:
            if client.replies == before or not _is_about_a_reply(error):
                raise
            raise not_its_answer(client, method.__qualname__) from error

    return reading


def _is_about_a_reply(error: Exception) -> bool:
    if isinstance(error, RuntimeError) and not isinstance(error.__cause__, StopIteration):
        return False
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is None or at.tb_frame.f_globals.get("__name__") not in _CLIENTS
