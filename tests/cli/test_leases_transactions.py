"""Transactions on the command line, and fsck, which finds unfinished ones."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from cli.command_line import wrasse
from wrasse.backends.directory.connect import Directory
from wrasse.clock import Clock, ManualClock, SystemClock
from wrasse.leases.leases import Leases
from wrasse.leases.transactions.states import DECISIONS, Decision, Participant

ID = "d5arif5qkajneqfrmsb0"


@pytest.fixture
def directory(place: Path) -> Path:
    (place / "wrasse.yaml").write_text("backends: {records: 'file:data'}")
    return place / "data"


def staged(*keys: str) -> str:
    """Keys with something staged in one transaction; the lease of the last."""
    lease = ""
    for key in keys:
        taken = wrasse("leases", "acquire", key, "--ttl=5m", f"--transaction={ID}", "--json").json
        lease = f"--lease={taken['lease']}"
        assert (taken["transaction"], wrasse("leases", "update", key, lease, "1").code) == (ID, 0)
    return lease


async def left(directory: Path, clock: Clock, state: Decision) -> None:
    """A transaction that was decided, by a process that died then."""
    backend = await Directory.open(directory, clock)
    leases = Leases(backend.records, backend.objects, clock)
    held = await leases.acquire("a", "me", ttl=timedelta(seconds=30), transaction=ID)
    await leases.update(held.granted, b"1")
    if state is not Decision.PENDING:
        who = Participant("default", "a", held.granted.token)
        await leases.transactions.transaction_log.decide(ID, state, (who,), held.granted.expires_at, clock.now())
    await leases.close()
    await backend.close()


def ago(**since: float) -> ManualClock:
    return ManualClock(SystemClock().now() - timedelta(**since))


def test_two_keys_are_committed_by_one_release(directory: Path) -> None:
    lease = staged("a", "b")
    shown = wrasse("leases", "transaction", ID, "--json").json
    assert (shown["state"], shown["keys"]) == ("pending", ["default/a", "default/b"])
    assert wrasse("leases", "release", "b", lease).code == 0
    assert [wrasse("leases", "get", key).out for key in ("a", "b")] == ["1\n", "1\n"]
    assert "commit" in wrasse("leases", "transaction", ID).out


def test_a_transaction_is_decided_by_its_id_and_stays_so(directory: Path) -> None:
    staged("a", "b")
    assert wrasse("leases", "transaction", ID, "--rollback", "--json").json["state"] == "rollback"
    late = wrasse("leases", "transaction", ID, "--commit", "--json")
    assert (late.code, late.json["state"]) == (3, "rollback")
    assert wrasse("leases", "get", "a").code == 2


def test_an_unknown_transaction_and_two_wishes_at_once_are_refused(directory: Path) -> None:
    assert wrasse("leases", "transaction", ID).code == 2
    assert wrasse("leases", "transaction", "nope").code == 2
    assert wrasse("leases", "transaction", ID, "--commit", "--rollback").code == 2


@pytest.mark.parametrize("state", [Decision.COMMIT, Decision.PENDING])
def test_an_unfinished_transaction_is_found_and_finished(directory: Path, state: Decision) -> None:
    asyncio.run(left(directory, ago(hours=3), state))
    found = wrasse("leases", "fsck", "--json")
    repaired = wrasse("leases", "fsck", "--repair", "--json")
    assert (found.code, [each["trouble"] for each in found.json["inconsistencies"]]) == (1, ["unfinished transaction"])
    assert (repaired.code, wrasse("leases", "get", "a").code) == (0, 0 if state is Decision.COMMIT else 2)
    assert wrasse("leases", "fsck").code == 0


def test_a_transaction_under_way_is_fine(directory: Path) -> None:
    staged("a")
    assert wrasse("leases", "fsck", "--json").json["wrong"] == 0


@pytest.mark.parametrize(("wrong", "trouble"), [("entry", "missing index entry"), ("time", "spent decision")])
def test_decisions_that_no_sweep_would_delete_are_found(directory: Path, wrong: str, trouble: str) -> None:
    async def decide() -> None:
        clock = ago(hours=30) if wrong == "time" else ago(hours=1)
        backend = await Directory.open(directory, clock)
        leases = Leases(backend.records, backend.objects, clock)
        await leases.decide(ID, commit=True)
        await leases.close()
        assert await backend.records(DECISIONS).get(ID) is not None
        await backend.close()

    asyncio.run(decide())
    if wrong == "entry":
        for entry in (directory / ".txn-decisions" / "e").rglob(f"*{ID}*"):
            entry.unlink()
    found = [each["trouble"] for each in wrasse("leases", "fsck", "--json").json["inconsistencies"]]
    assert (found, wrasse("leases", "fsck", "--repair").code, wrasse("leases", "fsck").code) == ([trouble], 0, 0)
