"""A bucket as a user meets it: archives go there, leases live there, doctor says what it honours. On SeaweedFS."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

from app.daemons import running, until
from app.typed import wrasse
from conformance.object_stores import BUCKET, make_bucket
from servers.seaweed import S3 as S3Server

AUDIT = "gbe.events.audit.change"


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix of its own in a bucket, with credentials and endpoint in the environment, as AWS's tools take them."""
    asyncio.run(make_bucket(s3))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.endpoint)
    return f"s3://{BUCKET}/{secrets.token_hex(6)}"


def test_a_stream_is_archived_into_the_bucket_that_the_design_document_names(place: Path, bucket: str) -> None:
    prefix = bucket.rpartition("/")[2]
    (place / "wrasse.yaml").write_text(
        f"archiver: {{streams: [{{stream: 'gbe.events.audit.*', destination: s3, bucket: {BUCKET}, prefix: {prefix}, "
        "batch_size: 2}]}\n"
    )
    for payload in ("one", "two", "three", "four"):
        assert wrasse("streams", "publish", AUDIT, payload).code == 0
    with running(place, "--role=archiver") as daemon:
        until(lambda: _messages() == 4, "all four in archives")
        daemon.signal()
        assert daemon.end() == 0
    assert wrasse("archives", "verify").code == 0
    assert wrasse("archives", "read", AUDIT, "--json").out.count(AUDIT) >= 4


def test_leases_may_live_in_a_bucket_and_doctor_prints_its_probe(place: Path, bucket: str) -> None:
    (place / "wrasse.yaml").write_text(f"backends: {{records: '{bucket}', objects: '{bucket}'}}\n")
    checked = wrasse("doctor", "--json")
    (probe,) = [each for each in checked.json["checks"] if each["check"] == "probe"]
    assert (checked.code, "conditional create" in probe["what"], probe["state"]) == (0, True, "ok")


def test_a_careless_store_fails_the_check_with_what_to_do(
    place: Path, careless_store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(make_bucket(careless_store, "careless"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", careless_store.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", careless_store.secret)
    url = f"s3://careless/x?endpoint={careless_store.endpoint}"
    (place / "wrasse.yaml").write_text(f"backends: {{objects: '{url}'}}\n")
    checked = wrasse("doctor", "--json")
    (found,) = [each for each in checked.json["checks"] if each["check"] == "objects"]
    assert (checked.code, found["state"], "ignores the condition" in found["what"]) == (1, "fail", True)


def _messages() -> int:
    found = wrasse("archives", "verify", "--json")
    return int(sum(each["messages"] for each in found.json["streams"])) if found.code == 0 else 0
