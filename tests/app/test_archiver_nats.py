"""The archiver on NATS: a server that lost its disk is another one, however much it holds by now."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path

from app.test_archiver_redis import CHANGE, drained, read_numbers, wrasse_publish
from app.typed import wrasse
from servers.nats import nats


def test_a_server_that_lost_its_disk_is_noticed_and_gone_on_from(place: Path) -> None:
    """Its sequences begin anew: read on after the cursor, what it holds before that would be passed over."""
    with nats() as server:
        # Cursors are elsewhere: had they been lost as well, everything would begin at the first entry.
        (place / "wrasse.yaml").write_text(
            f"backends: {{streams: '{server.url}'}}\nengine: {{backend: 'sqlite:engine.db'}}\n"
            "archiver: {streams: [{stream: gbe.events.audit.*, batch_size: 10}]}\n"
        )
        wrasse_publish(range(6))
        assert asyncio.run(drained()) == ""
        server.kill()
        shutil.rmtree(server.place / "js")
        server.start()
        wrasse_publish(range(100, 120))
        assert "was set back" in asyncio.run(drained())
        assert wrasse("archives", "restart", CHANGE, "--yes").code == 0
        assert asyncio.run(drained()) == ""
        assert read_numbers() == Counter([*range(6), *range(100, 120)])
        assert wrasse("archives", "verify").code == 0
