"""The server that everything about Redis is measured on: the Valkey of the tests, with nothing written to disk."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from servers.valkey import Valkey, valkey  # the tests are no package


@contextlib.contextmanager
def serving() -> Iterator[Valkey]:
    """A server of its own."""
    with valkey() as server:
        yield server
