"""wrasse orphans on a bucket of a real server: plan, apply, undo, purge, with references in SQLite."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import apsw
import pytest

from app.typed import wrasse
from conformance.object_stores import BUCKET, make_bucket
from servers.seaweed import S3 as S3Server
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.connect import S3
from wrasse.clock import SystemClock

ALL = [f"archives/ws1/{op}/{name}" for op in ("new", "old") for name in ("home.tar.gz", "home.tar.gz.meta")]


class Bucket:
    """A prefix of its own in a bucket."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self.prefix = secrets.token_hex(6)
        self._address = S3Address(BUCKET, self.prefix, server.endpoint, access_key=server.key, secret_key=server.secret)

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.prefix}?endpoint={self._server.endpoint}"

    def put(self, *keys: str) -> None:
        asyncio.run(self._put(keys))

    def contents(self) -> dict[str, bytes]:
        """Every object, with what it holds."""
        return asyncio.run(self._contents())

    async def _put(self, keys: tuple[str, ...]) -> None:
        await make_bucket(self._server)
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


@pytest.fixture
def bucket(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Two archives of a workspace, of which one is referenced."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret)
    bucket = Bucket(s3)
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


def test_a_plan_is_carried_out_taken_back_and_in_the_end_purged(bucket: Bucket) -> None:
    before = bucket.contents()
    assert wrasse("orphans", "plan").code == 0
    assert wrasse("orphans", "plan", "--out", "plan.jsonl").code == 0
    done = wrasse("orphans", "apply", "plan.jsonl", "--json")
    assert (done.code, done.json["done"]) == (0, 1), done.err
    moved = bucket.contents()
    assert sorted(key.startswith(".trash/") for key in moved) == [False, False, True, True]
    undone = wrasse("orphans", "undo", done.json["run"])
    assert undone.code == 0, undone.err
    assert bucket.contents() == before
    wrasse("orphans", "arm", "archives")
    for _ in range(4):
        assert wrasse("sweep", "orphan-archives").code == 0
    assert sorted(bucket.contents()) == ALL[:2]
