"""The demo's stream: messages are published, archived, read back and proven."""

from __future__ import annotations

from dataclasses import dataclass

from wrasse.app.archiving import build_archiver, build_rules
from wrasse.app.building import owner_name
from wrasse.app.config import Config
from wrasse.app.wiring import Stores
from wrasse.archives.drain import GROUP
from wrasse.archives.shelf import Shelved, shelved
from wrasse.archives.verify import Verified, verify
from wrasse.clock import Clock
from wrasse.streams.publisher import Message, Publisher

AUDIT = "gbe.events.audit.change"
MESSAGES = 25


@dataclass(frozen=True, slots=True)
class Kept:
    """What is in the archives in the end."""

    archives: tuple[Shelved, ...]
    streams: tuple[Verified, ...]

    @property
    def whole(self) -> bool:
        """Whether every message is there once."""
        return sum(each.messages for each in self.streams if each.whole) == MESSAGES


async def publish_and_archive(config: Config, clock: Clock) -> Kept:
    """Publishes, archives all of it, and verifies what was written."""
    stores = Stores(clock)
    try:
        streams = (await stores.open_streams(config.homes.streams)).streams
        messages = [Message(AUDIT, b'{"change": %d}' % number) for number in range(MESSAGES)]
        await Publisher(streams, clock).publish_many(messages)
        await (await build_archiver(config, stores, clock, owner_name())).drain()
        (rule,) = await build_rules(config, stores)
        archives = [each async for each in shelved(rule.objects, rule.prefix, AUDIT)]
        proven = [
            each async for each in verify(rule.objects, rule.prefix, AUDIT, group=GROUP, streams=streams)
        ]
        return Kept(tuple(archives), tuple(proven))
    finally:
        await stores.close()
