"""wrasse orphans on a bucket of a real server: plan, apply, undo, purge, with references in SQLite."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from cli.command_line import wrasse
from conformance.object_stores import make_bucket, versioned_bucket
from servers.seaweed import S3 as S3Server
from wrasse.backends.s3.connect import S3
from wrasse.clock import SystemClock

ALL = [f"archives/ws1/{op}/{name}" for op in ("new", "old") for name in ("home.tar.gz", "home.tar.gz.meta")]


class Bucket:
    """A prefix of its own in a bucket."""

    def __init__(self, server: S3Server, *, versioned: bool = False) -> None:
        self._server = server
        made = asyncio.run(versioned_bucket(server) if versioned else make_bucket(server))
        self.prefix = secrets.token_hex(6)
        self._address = replace(made, prefix=self.prefix)

    @property
    def url(self) -> str:
        return f"s3://{self._address.bucket}/{self.prefix}?endpoint={self._server.endpoint}"

    def put(self, *keys: str) -> None:
        asyncio.run(self._put(keys))

    def contents(self) -> dict[str, bytes]:
        """Every object, with what it holds."""
        return asyncio.run(self._contents())

    async def _put(self, keys: tuple[str, ...]) -> None:
        store = await S3.open(self._address, SystemClock())
        try:
            for key in keys:
                assert await store.objects.create(key, key.encode() * 10, metadata={"kind": "archive"})
        finally:
            await store.close()

    async def _contents(self) -> dict[str, bytes]:
        store = await S3.open(self._address, SystemClock())
        try:
            found = {}
            for info in await store.objects.page("", None, 1_000):
                found[info.key] = b"".join([chunk async for chunk in store.objects.read(info.key)])
            return found
        finally:
            await store.close()


@pytest.fixture(params=["plain", "versioned"])
def bucket(request: pytest.FixtureRequest, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Two archives of a workspace, of which one is referenced."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret)
    bucket = Bucket(s3, versioned=request.param == "versioned")
    bucket.put(*ALL)
    db = apsw.Connection("app.db")
    db.execute("CREATE TABLE workspaces (id TEXT, archive_key TEXT, op_id TEXT, deleted_at TEXT)")
    db.execute("INSERT INTO workspaces VALUES ('ws1', 'archives/ws1/new/home.tar.gz', 'new', NULL)")
    db.close()
    (tmp_path / "wrasse.yaml").write_text(f"""
orphans:
  archives:
    preset: workspaces
    store: {bucket.url}
    database: sqlite:app.db
    superseded: 0s
    soft_deleted: 0s
    age_min: 0s
    quarantine: 1ms
    writer_timeout: 0s
    writer_retries: 0
""")
    return bucket


def test_a_plan_is_carried_out_undone_and_in_the_end_purged(bucket: Bucket, request: pytest.FixtureRequest) -> None:
    before = bucket.contents()
    assert wrasse("orphans", "plan").code == 0
    assert wrasse("orphans", "plan", "--out", "plan.jsonl").code == 0
    done = wrasse("orphans", "apply", "plan.jsonl", "--json")
    assert (done.code, done.json["done"]) == (0, 1), done.err
    moved = bucket.contents()
    trash = [True, True] if request.node.callspec.params["bucket"] == "plain" else []  # versions need no copies
    assert sorted(key.startswith(".trash/") for key in moved) == [False, False, *trash]
    undone = wrasse("orphans", "undo", done.json["run"])
    assert undone.code == 0, undone.err
    assert bucket.contents() == before
    wrasse("orphans", "arm", "archives")
    for _ in range(4):
        assert wrasse("sweep", "orphan-objects").code == 0
    assert sorted(bucket.contents()) == ALL[:2]
