"""Whatever command makes a file, nobody but its owner may read it, under any umask; doctor names what is open."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from cli.command_line import wrasse
from processes.daemons import running, until

CONFIG = """
archiver:
  streams: [{stream: "gbe.events.audit.*", batch_size: 1}]
orphans:
  archives:
    preset: workspaces
    database: sqlite:app/app.db
    sightings: sqlite:sightings.db
    spool: spools/deep
    superseded: 0s
    soft_deleted: 0s
    age_min: 0s
    writer_timeout: 0s
    writer_retries: 0
"""
OWN = {"app", "wrasse.yaml"}  # the test's own
STORES = {
    "sqlite": "backends: {jobs: 'sqlite:deep/er/jobs.db', objects: 'file:deep/objects'}",
    "directory": "backends: {jobs: 'file:data/er', records: 'file:data/er', objects: 'file:data/er', "
    "streams: 'sqlite:streams.db'}",
}


@pytest.fixture(params=[0o000, 0o022, 0o002], ids=["umask 000", "umask 022", "umask 002"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app").mkdir()
    db = apsw.Connection("app/app.db")
    db.execute("CREATE TABLE workspaces (id TEXT, archive_key TEXT, op_id TEXT, deleted_at TEXT)")
    db.execute("INSERT INTO workspaces VALUES ('ws1', 'archives/ws1/new/home.tar.gz', 'new', NULL)")
    db.close()
    before = os.umask(request.param)
    yield tmp_path
    os.umask(before)


def paths_in(place: Path) -> list[Path]:
    """What is there now; os.walk goes past a directory that is removed meanwhile, as rglob does not."""
    return [Path(above, name) for above, folders, files in os.walk(place) for name in (*folders, *files)]


def open_to_others(place: Path) -> list[str]:
    """Every path that wrasse made and that anybody but its owner may use. A path may go while it is looked at."""
    made = [path for path in paths_in(place) if path.relative_to(place).parts[0] not in OWN]
    assert made, "nothing was made"
    modes = {}
    for path in made:
        with suppress(FileNotFoundError):
            modes[str(path.relative_to(place))] = stat.S_IMODE(path.lstat().st_mode)
    return [f"{name} {mode:o}" for name, mode in modes.items() if mode & 0o077]


@pytest.mark.parametrize("store", STORES)
def test_whatever_is_made_is_closed_to_others(place: Path, store: str) -> None:
    (place / "wrasse.yaml").write_text(STORES[store] + CONFIG)
    if store == "sqlite":
        (place / "deep/er").mkdir(parents=True, mode=0o700)  # SQLite makes no directories
        (place / "deep").chmod(0o700)
    did = [
        wrasse("jobs", "enqueue", "--kind=x", '{"card": 4242}'),
        wrasse("streams", "publish", "gbe.events.audit.change", "one"),
        lease := wrasse("leases", "acquire", "orders/42", "--json", "--ttl=5m"),
        wrasse("leases", "update", "orders/42", f"--lease={lease.json['lease']}", '{"paid": true}'),
        wrasse("leases", "attach", "orders/42", "wrasse.yaml", f"--lease={lease.json['lease']}"),
        wrasse("leases", "release", "orders/42", f"--lease={lease.json['lease']}"),
        wrasse("leases", "fetch", "orders/42", "wrasse.yaml", "--output=fetched.yaml"),
        wrasse("orphans", "plan", "archives", "--out=plan.jsonl"),
        wrasse("sweep"),
        wrasse("doctor"),
    ]
    assert [each.err for each in did if each.code] == []
    with running(place, "--exec=true") as daemon:
        until(lambda: any(path.name.endswith(".jsonl.gz") for path in paths_in(place)), "an archive")
        assert open_to_others(place) == []
        daemon.signal()
        assert daemon.end() == 0
    assert open_to_others(place) == []
    for name in ("plan.jsonl", "fetched.yaml", "spools/deep"):
        assert (place / name).exists()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    yield tmp_path
    os.umask(before)


@pytest.mark.parametrize("mode", [0o2770, 0o2750])
def test_a_directory_with_the_set_group_bit_is_shared_with_its_group(here: Path, mode: int) -> None:
    (here / "data").mkdir()
    (here / "data").chmod(mode)
    (here / "wrasse.yaml").write_text("backends: {jobs: 'file:data', records: 'file:data', objects: 'file:data'}")
    os.umask(0o077)
    assert wrasse("jobs", "enqueue", "--kind=x", "{}").code == 0
    found = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in (here / "data").rglob("*")}
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (here / "data").rglob("*")}
    assert found == {True: mode, False: 0o600 | mode & 0o060}
    assert len(modes) == 2


def modes_said() -> dict[str, str]:
    found = wrasse("doctor", "--json").json["checks"]
    return {each["what"]: each["do"] for each in found if each["check"] == "modes" and each["state"] == "warn"}


def test_doctor_names_files_of_earlier_versions_that_others_may_read(here: Path) -> None:
    (here / "wrasse.yaml").write_text(STORES["directory"].replace("jobs: 'file:data/er'", "jobs: 'sqlite:jobs.db'"))
    wrasse("jobs", "enqueue", "--kind=x", "{}")
    wrasse("leases", "acquire", "orders/42")
    assert modes_said() == {}
    (here / "jobs.db").chmod(0o644)
    (here / "data/er").chmod(0o755)
    database, directory = modes_said().values()
    assert database == "chmod 600 jobs.db"
    assert directory.startswith("chmod 700 data/er;")
    assert (here / "jobs.db").stat().st_mode & 0o777 == 0o644  # nothing is changed by itself
    wrasse("jobs", "enqueue", "--kind=x", "{}")
    assert (here / "jobs.db").stat().st_mode & 0o777 == 0o644


def test_doctor_names_archives_sightings_and_secret_files_that_others_may_read(here: Path) -> None:
    (here / "wrasse.yaml").write_text(
        "archiver: {streams: [{stream: a, destination: 'file:arch'}]}\n"
        "orphans: {a: {preset: workspaces, database: 'sqlite:app.db', sightings: 'sqlite:seen.db'}}\n"
        "leases: {listen: '', tokens: {ci: {token_file: ci.token}}, client_key: my.key}\nnats: {creds: my.creds}\n"
    )
    (here / "arch").mkdir(mode=0o700)
    for name in ("seen.db", "app.db", "ci.token", "my.key", "my.creds"):
        (here / name).touch(mode=0o600)
    assert modes_said() == {}
    for path in here.iterdir():
        path.chmod(0o755)
    told = modes_said().values()
    assert {each.partition(";")[0] for each in told} == {
        "chmod 600 seen.db", "chmod 700 arch", "chmod 600 ci.token my.creds my.key",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("redis: {password: hunter2}", True),
        ("orphans: {a: {preset: workspaces, database: 'postgresql://u:hunter2@127.0.0.1:1/db'}}", True),
        ("worker: {count: 3}", False),
    ],
)
def test_doctor_names_a_configuration_file_with_secrets_that_others_may_read(
    here: Path, text: str, secret: bool
) -> None:
    config = here / "wrasse.yaml"
    config.write_text(text)
    config.chmod(0o644)
    assert ("chmod 600 wrasse.yaml" in modes_said().values()) is secret
    config.chmod(0o640)
    assert modes_said() == {}
