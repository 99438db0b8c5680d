"""SeaweedFS: a real S3 that honours conditions. rclone's S3: one that ignores them, for tests that it is refused."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servers.process import ServerProcess, folder, free_ports

BIN = Path(sys.executable).parent
KEY, SECRET = "test", "testsecret"
READER = "reader", "readersecret"  # who may look and change nothing


@dataclass(frozen=True)
class S3:
    """Where an S3 is and who may use it."""

    endpoint: str
    key: str = KEY
    secret: str = SECRET
    process: ServerProcess | None = None


@contextlib.contextmanager
def seaweed() -> Iterator[S3]:
    """A server of its own, ready in about three seconds: start one per test run."""
    if endpoint := os.environ.get("WRASSE_TEST_S3_ENDPOINT"):
        yield S3(endpoint, os.environ.get("AWS_ACCESS_KEY_ID", KEY), os.environ.get("AWS_SECRET_ACCESS_KEY", SECRET))
        return
    ports = free_ports(8)
    master, master_rpc, volume, volume_rpc, filer, filer_rpc, s3, s3_rpc = ports
    with folder() as place:
        who = {"name": "t", "credentials": [{"accessKey": KEY, "secretKey": SECRET}]}
        who["actions"] = ["Admin", "Read", "Write", "List", "Tagging"]
        looks = {"name": "r", "credentials": [dict(zip(("accessKey", "secretKey"), READER, strict=True))]}
        looks["actions"] = ["Read", "List"]
        (place / "s3.json").write_text(json.dumps({"identities": [who, looks]}))
        (place / "data").mkdir()
        argv = [
            BIN / "weed", "-logtostderr=true", "server", f"-dir={place / 'data'}", "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1", f"-master.port={master}", f"-master.port.grpc={master_rpc}",
            f"-volume.port={volume}", f"-volume.port.grpc={volume_rpc}", "-filer", f"-filer.port={filer}",
            f"-filer.port.grpc={filer_rpc}", "-s3", f"-s3.port={s3}", f"-s3.port.grpc={s3_rpc}",
            f"-s3.config={place / 's3.json'}", "-master.volumeSizeLimitMB=64", "-volume.max=30",
            "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.preStopSeconds=0",
        ]  # fmt: skip
        server = ServerProcess(argv, s3, place, signal.SIGKILL, {**os.environ, "HOME": str(place)})
        server.start()
        try:
            yield S3(f"http://127.0.0.1:{s3}", process=server)
        finally:
            server.stop()
            for each in Path("/tmp").glob("seaweedfs-*.sock"):  # it leaves its sockets behind
                if each.stem.rsplit("-", 1)[1] in {str(port) for port in ports}:
                    each.unlink(missing_ok=True)


@contextlib.contextmanager
def careless_s3() -> Iterator[S3]:
    """rclone serving a folder as S3: If-None-Match and If-Match are ignored."""
    (port,) = free_ports(1)
    with folder() as place:
        (place / "data").mkdir()
        argv = [BIN / "rclone", "serve", "s3", place / "data", "--addr", f"127.0.0.1:{port}"]
        argv += ["--auth-key", f"{KEY},{SECRET}", "--config", place / "rclone.conf"]
        server = ServerProcess(argv, port, place, env={**os.environ, "HOME": str(place)})
        server.start()
        try:
            yield S3(f"http://127.0.0.1:{port}", process=server)
        finally:
            server.stop()
