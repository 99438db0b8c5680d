"""The role leases finishes what a dead process left of a transaction: amid traffic, and when nobody calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cli.command_line import wrasse
from cli.test_leases_transactions import ID, left
from processes.daemons import running, until
from runtime.test_leases import IDLE, call
from wrasse.clock import SystemClock
from wrasse.leases.transactions.states import Decision

BUSY = ("--idle-sweep-grace=1h", "--txn-replay-interval=50ms")


@pytest.mark.parametrize(("flags", "counted"), [(IDLE, "committed"), (BUSY, "replayed")])
def test_a_transaction_that_a_dead_process_decided_is_carried_out(
    place: Path, flags: tuple[str, ...], counted: str
) -> None:
    (place / "wrasse.yaml").write_text("backends: {records: 'file:data'}\nleases: {listen: '127.0.0.1:0'}")
    asyncio.run(left(place / "data", SystemClock(), Decision.COMMIT))
    with running(place, "--role=leases", *flags) as daemon:
        if counted == "replayed":
            call(daemon, "acquire", {"key": "other", "owner": "me", "block_seconds": -1})
        name = f"wrasse_leases_transactions_{counted}_total"
        assert until(lambda: daemon.metrics().get(name) or None, "the transaction is finished") == 1
        assert call(daemon, "txn/replay", {"txn_id": ID}) == (200, {"txn_id": ID, "state": "commit"})
    assert wrasse("leases", "get", "a").out == "1\n"
