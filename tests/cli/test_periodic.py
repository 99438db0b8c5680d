"""The comforts of a job queue, as a user types them: periodic list, replay, unique puts, filters of the dead."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.command_line import wrasse
from processes.daemons import running, until

pytestmark = pytest.mark.usefixtures("place")


def dead(count: int, kind: str = "x") -> None:
    ids = [f"{kind}-{number}" for number in range(count)]
    wrasse(
        "jobs", "enqueue", "--json-lines", stdin="\n".join(f'{{"id": "{id}", "kind": "{kind}"}}' for id in ids).encode()
    )
    assert wrasse("jobs", "cancel", *ids, "--why=out of order").code == 0


def test_periodic_jobs_of_the_settings_are_listed_before_their_first_slot() -> None:
    Path("wrasse.yaml").write_text('periodic:\n  nightly: {cron: "0 3 * * *", tz: Europe/Berlin, kind: report}\n')
    (listed,) = wrasse("periodic", "list", "--json").json["periodic"]
    assert (listed["name"], listed["kind"], listed["when"]) == ("nightly", "report", "cron 0 3 * * * Europe/Berlin")
    assert listed["next"] > "2026"
    assert listed["last"] is None
    assert "never" in wrasse("periodic", "list").out


def test_without_periodic_jobs_the_list_says_so() -> None:
    assert "no periodic jobs" in wrasse("periodic", "list").out


def test_a_replay_is_refused_without_yes_and_shows_its_plan_without_changes() -> None:
    dead(3)
    assert wrasse("jobs", "replay").code == 3
    assert wrasse("jobs", "replay", "--dry-run", "--json").json == {"count": 3, "dry_run": True}
    assert wrasse("jobs", "stats", "--json").json["queues"][0]["dead"] == 3


def test_a_replay_without_a_worker_stops_after_its_canaries() -> None:
    dead(4)
    answer = wrasse("jobs", "replay", "--yes", "--canary=2", "--watch=50ms", "--json")
    assert answer.code == 3
    assert "none of 2 canaries ended" in answer.err
    assert answer.json["requeued"] == 2
    assert wrasse("jobs", "stats", "--json").json["queues"][0]["dead"] == 2


def test_a_replay_takes_filters_and_a_rate() -> None:
    dead(2, "mail")
    dead(2, "report")
    answer = wrasse("jobs", "replay", "--yes", "--canary=0", "--kind=mail", "--error=out of", "--rate=100/s", "--json")
    assert (answer.code, answer.json["requeued"]) == (0, 2)
    assert wrasse("jobs", "replay", "--rate=fast", "--yes").code == 2
    assert wrasse("jobs", "replay", "--until=1h", "--dry-run", "--json").json["count"] == 0


def test_the_dead_are_filtered_by_when_they_died() -> None:
    dead(2)
    assert len(wrasse("jobs", "dead", "--since=1h", "--json").json["jobs"]) == 2
    assert wrasse("jobs", "dead", "--until=1h", "--json").json["jobs"] == []


def test_a_unique_job_is_put_once_and_its_result_is_kept() -> None:
    first = wrasse("jobs", "enqueue", "a", "--unique=report", "--keep=1h", "--json").json["jobs"][0]
    second = wrasse("jobs", "enqueue", "b", "--unique=report", "--json").json["jobs"][0]
    assert (first["new"], second["new"], second["id"]) == (True, False, first["id"])
    assert wrasse("jobs", "show", first["id"], "--json").json["unique"] == "report"
    assert wrasse("jobs", "enqueue", "b", "--window=1h").code == 2


def test_a_process_that_only_sweeps_puts_periodic_jobs_too(place: Path) -> None:
    Path("wrasse.yaml").write_text("periodic:\n  tick: {every: 1s, kind: ping, data: {a: 1}}\n")
    with running(place, "--role=sweeper"):
        # The slot is noted after its job is enqueued: once it is noted, both are there.
        until(lambda: wrasse("periodic", "list", "--json").json["periodic"][0]["last_job"] or None, "a slot put")
    (job, *_) = wrasse("jobs", "list", "--state=ready", "--json").json["jobs"]
    assert (job["kind"], job["id"][:14]) == ("ping", "periodic/tick/")
    assert wrasse("periodic", "list", "--json").json["periodic"][0]["last_job"].startswith("periodic/tick/")


def test_a_worker_runs_what_an_app_without_async_registered(place: Path) -> None:
    Path("shop.py").write_text(
        "import wrasse\napp = wrasse.sync.connect()\n@app.every('1s')\ndef tick(job):\n    return 'ran'\n"
    )
    with running(place, "--role=worker", "--handler=shop:app"):
        until(lambda: wrasse("jobs", "list", "--state=done", "--json").json["jobs"] or None, "a slot that was run")
    (job, *_) = wrasse("jobs", "list", "--state=done", "--json").json["jobs"]
    assert wrasse("jobs", "show", job["id"], "--result").raw == b'"ran"'
