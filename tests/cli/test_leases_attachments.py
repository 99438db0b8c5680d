"""Attachments on the command line and without an event loop; jobs in a directory, from a shell to a handler."""

from __future__ import annotations

from pathlib import Path

import pytest

import wrasse
from cli.command_line import wrasse as typed

pytestmark = pytest.mark.usefixtures("place")


@pytest.fixture
def lease(place: Path) -> str:
    (place / "wrasse.yaml").write_text("backends: {records: 'file:data'}")
    answer = typed("leases", "acquire", "orders/42", "--ttl=5m", "--json")
    return f"--lease={answer.json['lease']}"


def test_a_file_is_staged_committed_listed_and_fetched_command_by_command(place: Path, lease: str) -> None:
    (place / "scan.pdf").write_bytes(b"pages")
    staged = typed("leases", "attach", "orders/42", "scan.pdf", lease, "--json").json
    early = typed("leases", "attachments", "orders/42", "--json").json["attachments"]
    mine = typed("leases", "attachments", "orders/42", lease, "--json").json["attachments"]
    typed("leases", "release", "orders/42", lease)
    fetched = typed("leases", "fetch", "orders/42", "scan.pdf", "--output=copy.pdf")
    assert (staged["bytes"], staged["content_type"], early, [each["name"] for each in mine], fetched.code) == (
        5, "application/pdf", [], ["scan.pdf"], 0,
    )  # fmt: skip
    assert (place / "copy.pdf").read_bytes() == b"pages"


def test_a_detached_file_is_gone_after_the_commit(place: Path, lease: str) -> None:
    (place / "a.txt").write_bytes(b"a")
    typed("leases", "attach", "orders/42", "a.txt", lease, "--name=b.txt")
    said = [typed("leases", "detach", "orders/42", name, lease).out for name in ("b.txt", "a.txt")]
    typed("leases", "release", "orders/42", lease)
    gone = typed("leases", "fetch", "orders/42", "b.txt")
    assert (said[0].endswith("without b.txt\n"), said[1], gone.code) == (True, "orders/42 has no attachment a.txt\n", 1)


def test_what_cannot_be_read_says_so(lease: str) -> None:
    missing = typed("leases", "attach", "orders/42", "nosuch", lease)
    nameless = typed("leases", "attach", "orders/42", "-", lease)
    assert (missing.code, "cannot be read" in missing.err, nameless.code) == (2, True, 2)


def test_a_program_without_an_event_loop_attaches_and_fetches(place: Path) -> None:
    with wrasse.sync.connect("file:data") as app:
        with app.lease("orders/42") as lease:
            lease.attach("a", b"bytes")
        with app.lease("orders/42") as lease:
            names, size = [each.name for each in lease.attachments()], lease.fetch("a", place / "copy")
            lease.detach("a")
        with app.lease("orders/42") as lease:
            assert (names, size, (place / "copy").read_bytes(), list(lease.attachments())) == (["a"], 5, b"bytes", [])


def test_jobs_in_a_directory_are_put_listed_and_worked(place: Path) -> None:
    (place / "wrasse.yaml").write_text("backends: {jobs: 'file:data', records: 'file:data'}")
    typed("jobs", "enqueue", "--kind=note", "--id=a", "hello")
    listed = typed("jobs", "list", "--json").json["jobs"]
    with wrasse.sync.connect() as app:
        done: list[bytes] = []
        app.handler("note")(lambda job: done.append(job.payload))
        app.run_pending()
    left = [each for each in (place / "data" / "jobs").rglob("*") if each.is_file() and "/ids/" not in str(each)]
    assert ([each["id"] for each in listed], done) == (["a"], [b"hello"])
    assert [each.name for each in left if each.name != "buckets.json"] == []
