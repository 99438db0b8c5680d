"""wrasse streams: the group, and how its commands reach the streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from wrasse.app.cli_group import LazyGroup
from wrasse.app.config import Config
from wrasse.app.homes import homes
from wrasse.app.wiring import open_store, with_streams
from wrasse.ports.backend import StreamStore

HOMES = {
    "publish": ("cli_streams_publish", "publish one message, or one per line"),
    "read": ("cli_streams_read", "read messages, with a group or without leaving a trace"),
    "info": ("cli_streams_info", "streams in numbers, and how far each group is"),
}

streams = LazyGroup(
    "streams",
    HOMES,
    about="Publish and read messages, and see which group is how far.",
    examples="""\b
Examples:
  wrasse streams publish orders.eu.paid '{"order": 42}'
  wrasse streams read 'orders.*.paid' --follow
  wrasse streams info
""",
)

@asynccontextmanager
async def opened(config: Config, *, create: bool = False) -> AsyncIterator[StreamStore]:
    """The backend that holds the streams, for the length of a command; one that only reads creates nothing."""
    store = await open_store(homes(config).streams, create=create)
    try:
        await store.check_streams()
        yield with_streams(store)
    finally:
        await store.close()
