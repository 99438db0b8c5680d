"""A bucket as a user meets it: archives go there, leases live there, doctor says what it honours. On SeaweedFS."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

from archives.test_archiver import SEED_ARCHIVAL
from cli.command_line import wrasse
from conformance.object_stores import BUCKET, make_bucket
from processes.daemons import running, until
from servers.seaweed import S3 as S3Server
from wrasse.clock import SystemClock
from wrasse.runtime.backends import Stores

AUDIT, OTHER = "gbe.events.audit.change", "gbe.events.other.change"


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix of its own in a bucket, with credentials and endpoint in the environment, as AWS's tools take them."""
    asyncio.run(make_bucket(s3))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.endpoint)
    return f"s3://{BUCKET}/{secrets.token_hex(6)}"


def test_streams_are_archived_into_the_bucket_that_is_named_here_or_for_objects(place: Path, bucket: str) -> None:
    prefix = bucket.rpartition("/")[2]
    (place / "wrasse.yaml").write_text(
        f"backends: {{objects: '{bucket}'}}\n"
        f"archiver: {{streams: [{{stream: 'gbe.events.audit.*', destination: s3, bucket: {BUCKET}, prefix: {prefix}, "
        f"batch_size: 2}}]}}\n{SEED_ARCHIVAL.replace('audit', 'other').replace('1000', '1')}"
    )
    for payload in ("one", "two", "three", "four"):
        assert wrasse("streams", "publish", AUDIT, payload).code == 0
    assert wrasse("streams", "publish", OTHER, "five").code == 0
    with running(place, "--role=archiver") as daemon:
        until(lambda: _messages() == 5, "all five in archives")
        daemon.signal()
        assert daemon.end() == 0
    assert wrasse("archives", "verify").code == 0
    assert wrasse("archives", "read", AUDIT, "--json").out.count(AUDIT) >= 4
    assert not (place / "wrasse-data").exists()
    keys = asyncio.run(_keys(f"{bucket}/archive/"))
    assert any(OTHER in key for key in keys), keys


def test_the_destination_s3_without_a_bucket_is_refused_and_writes_nothing(place: Path) -> None:
    (place / "wrasse.yaml").write_text(SEED_ARCHIVAL)
    refused = wrasse("run", "--role=archiver", "--listen=")
    assert (refused.code, "has no bucket, and backends.objects is not on S3" in refused.err) == (2, True)
    assert [each.name for each in place.iterdir()] == ["wrasse.yaml"]


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


async def _keys(url: str) -> list[str]:
    stores = Stores(SystemClock())
    try:
        return [each.key for each in (await (await stores.open_objects(url)).page("", None, 100)).items]
    finally:
        await stores.close()
