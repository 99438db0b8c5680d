"""The server that everything about Redis is measured on: the Valkey of the tests, with nothing written to disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import cast

import hiredis

from servers.valkey import Valkey, valkey

pack = cast(Callable[[tuple[str | bytes | int | float, ...]], bytes], hiredis.pack_command)
"""The bytes of one command. The stub of hiredis allows one word only."""


@contextlib.contextmanager
def serving() -> Iterator[Valkey]:
    """A server of its own."""
    with valkey() as server:
        yield server
