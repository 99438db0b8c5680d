"""What another program wrote over the records that wrasse keeps of itself costs the sweep or periodic job it is of."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.command_line import wrasse

MARK = b'{"last":"2026-01-02T03:04:05Z","job":"a","kind":"k","when":"every soon","missed":"once"}'


@pytest.fixture(autouse=True)
def _place(place: Path) -> None:
    (place / "wrasse.yaml").write_text("backends: {jobs: 'file:q'}\nperiodic: {tick: {every: 1h}, tock: {every: 1h}}\n")
    assert wrasse("jobs", "enqueue", "x").code == 0
    assert wrasse("sweep").code == 0


@pytest.mark.parametrize("of", ["engine/r/finished_jobs.json", "meta/sweep%2Ffinished_jobs.json"])
@pytest.mark.parametrize("found", [b"\xff\xfe", b"", b"[1e400]"])
def test_a_sweep_whose_own_record_is_damaged_does_not_keep_the_others_from_running(of: str, found: bytes) -> None:
    (Path("q/.wrasse") / of).write_bytes(found)
    answer = wrasse("sweep", "--json")
    ran = [each["sweep"] for each in answer.json["reports"]]
    assert (answer.code, "finished_jobs" in answer.err) == (1, True)
    assert "finished_jobs" not in ran
    assert {"stuck_jobs", "expired_leases", "open_transactions"} <= {*ran}


@pytest.mark.parametrize("found", [b"\xff\xfe", b"", b"{}", MARK])
def test_a_periodic_job_whose_record_is_damaged_is_shown_as_invalid(found: bytes) -> None:
    store = Path("q/periodic/r")
    store.mkdir(parents=True)
    for name in ("tick", "gone"):
        (store / f"{name}.json").write_bytes(found)
    answer = wrasse("periodic", "list", "--json")
    assert answer.code == 0, answer.err
    shown = {each["name"]: (bool(each["next"]), "invalid" in each) for each in answer.json["periodic"]}
    assert shown == {"gone": (False, True), "tick": (True, True), "tock": (True, False)}
    assert "invalid" in wrasse("periodic", "list").out
