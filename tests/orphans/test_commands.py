"""wrasse orphans as a user types it, on a directory and SQLite: plan, apply, arm, why, undo, and every refusal."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

from cli.command_line import wrasse

CONFIG = """
orphans:
  archives:
    preset: workspaces
    database: sqlite:app.db
    superseded: 0s
    soft_deleted: 0s
    age_min: 0s
    writer_timeout: 0s
    writer_retries: 0
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with its archive and an older one; nothing has been scanned."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrasse.yaml").write_text(CONFIG)
    db = apsw.Connection("app.db")
    db.execute("CREATE TABLE workspaces (id TEXT, archive_key TEXT, op_id TEXT, deleted_at TEXT)")
    db.execute("INSERT INTO workspaces VALUES ('ws1', 'archives/ws1/new/home.tar.gz', 'new', NULL)")
    db.close()
    for op in ("new", "old"):
        folder = tmp_path / "wrasse-data" / "archives" / "ws1" / op
        folder.mkdir(parents=True)
        (folder / "home.tar.gz").write_text(op)
        (folder / "home.tar.gz.meta").write_text("sha256")
    return tmp_path


def archives(place: Path) -> list[str]:
    root = place / "wrasse-data" / "archives"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


ALL = ["ws1/new/home.tar.gz", "ws1/new/home.tar.gz.meta", "ws1/old/home.tar.gz", "ws1/old/home.tar.gz.meta"]


def planned(place: Path) -> Path:
    """A plan of what is due after two scans."""
    wrasse("orphans", "plan")
    answer = wrasse("orphans", "plan", "--out", "plan.jsonl")
    assert answer.code == 0, answer.err
    return place / "plan.jsonl"


def test_a_plan_is_read_carried_out_and_undone(place: Path) -> None:
    plan = planned(place)
    header, line = [json.loads(text) for text in plan.read_text().splitlines()]
    assert (header["root"], header["lines"]) == ("archives", 1)
    assert (line["verb"], line["unit"], line["reason"]) == (
        "quarantine", "archives/ws1/old/", "superseded at each of 2 looks",
    )  # fmt: skip
    done = wrasse("orphans", "apply", "plan.jsonl", "--json")
    assert (done.code, done.json["done"]) == (0, 1)
    assert archives(place) == ALL[:2]
    undone = wrasse("orphans", "undo", done.json["run"], "--json")
    assert (undone.code, undone.json["reports"][0]["done"]) == (0, 1)
    assert archives(place) == ALL
    assert (place / "wrasse-data/archives/ws1/old/home.tar.gz").read_text() == "old"
    told = [line["verb"] for line in wrasse("journal", "--json").json["lines"]]
    assert sorted(told) == ["quarantine", "restore"]


def test_a_run_that_came_too_late_has_nothing_to_take_back(place: Path) -> None:
    planned(place)
    wrasse("orphans", "apply", "plan.jsonl")
    late = wrasse("orphans", "apply", "plan.jsonl", "--json")
    assert (late.json["conflict"], wrasse("orphans", "undo", late.json["run"]).code) == (1, 2)
    assert archives(place) == ALL[:2]


def test_an_undoing_may_name_the_round_of_the_plan(place: Path) -> None:
    header = json.loads(planned(place).read_text().splitlines()[0])
    wrasse("orphans", "apply", "plan.jsonl")
    assert wrasse("orphans", "undo", header["round"]).code == 0
    assert archives(place) == ALL


def test_a_root_must_be_scanned_before_it_is_armed_and_then_acts_by_itself(place: Path) -> None:
    refused = wrasse("orphans", "arm", "archives")
    assert (refused.code, "wrasse orphans plan archives" in refused.err) == (3, True)
    wrasse("orphans", "plan")
    report = wrasse("sweep", "orphan-objects", "--json").json["reports"][0]
    assert (report["sweep"], report["kept"], archives(place)) == ("orphan_objects@archives", {"not armed": 1}, ALL)
    assert wrasse("orphans", "arm", "archives").code == 0
    assert wrasse("sweep", "orphan-objects", "--json").json["reports"][0]["done"] == 1
    assert archives(place) == ALL[:2]
    assert wrasse("orphans", "list", "--json").json["roots"][0]["armed"] is True
    assert wrasse("orphans", "disarm", "archives").code == 0
    assert wrasse("orphans", "list", "--json").json["roots"][0]["armed"] is False


def test_a_dry_plan_notes_nothing(place: Path) -> None:
    wrasse("orphans", "plan", "--dry-run")
    assert wrasse("orphans", "list", "--json").json["roots"][0]["scanned_at"] is None


def test_a_plan_that_was_changed_or_is_of_another_configuration_is_refused(place: Path) -> None:
    plan = planned(place)
    whole = plan.read_text()
    plan.write_text(whole.replace("ws1/old", "ws1/new"))
    changed = wrasse("orphans", "apply", "plan.jsonl")
    assert (changed.code, "was changed" in changed.err) == (3, True)
    plan.write_text(whole)
    (place / "wrasse.yaml").write_text(CONFIG + "    keep_newest: 3\n")
    other = wrasse("orphans", "apply", "plan.jsonl")
    assert (other.code, "another configuration" in other.err, archives(place)) == (3, True, ALL)
    plan.write_text("no plan")
    assert wrasse("orphans", "apply", "plan.jsonl").code == 2


def test_a_plan_is_not_believed_about_what_is_referenced_by_now(place: Path) -> None:
    planned(place)
    apsw.Connection("app.db").execute("UPDATE workspaces SET archive_key = 'archives/ws1/old/home.tar.gz'")
    done = wrasse("orphans", "apply", "plan.jsonl", "--json")
    assert (done.json["done"], done.json["conflict"], archives(place)) == (0, 1, ALL)


def test_a_plan_too_large_needs_approval_of_its_scan(place: Path) -> None:
    (place / "wrasse.yaml").write_text(CONFIG + "    objects_max: 1\n")
    header = json.loads(planned(place).read_text().splitlines()[0])
    held = wrasse("orphans", "apply", "plan.jsonl")
    assert (held.code, f"--allow {header['round']}" in held.err) == (3, True)
    assert wrasse("orphans", "apply", "plan.jsonl", "--allow", header["round"]).code == 0
    assert archives(place) == ALL[:2]


def test_a_lock_is_refused_where_the_database_has_none(place: Path) -> None:
    (place / "wrasse.yaml").write_text(CONFIG + "    lock: scheduler\n")
    refused = wrasse("orphans", "plan")
    assert (refused.code, "orphans.archives.lock is set" in refused.err) == (2, True)


def test_an_empty_database_is_refused_and_can_be_overruled_once(place: Path) -> None:
    planned(place)
    apsw.Connection("app.db").execute("DELETE FROM workspaces")
    refused = wrasse("orphans", "plan")
    assert (refused.code, "no reference at all" in refused.err) == (3, True)
    name = wrasse("orphans", "list", "--json").json["roots"][0]["refused"].partition(":")[0]
    assert wrasse("orphans", "arm", "archives", "--allow", "nonsense").code == 3
    assert wrasse("orphans", "arm", "archives", "--allow", name).code == 0
    assert wrasse("orphans", "plan").code == 0
    assert wrasse("orphans", "plan").code == 3


@pytest.mark.parametrize(("key", "verdict"), [
    ("archives/ws1/new/home.tar.gz", "protected"),
    ("archives/ws1/old/home.tar.gz.meta", "due now"),
    ("archives/ws1/old/", "due now"),
    ("archives/readme", "foreign"),
    ("archives/ws9/x/y", "gone"),
])  # fmt: skip
def test_why_tells_what_protects_or_condemns_a_key(place: Path, key: str, verdict: str) -> None:
    planned(place)
    facts = wrasse("orphans", "why", key, "--json").json
    assert verdict in facts["verdict"]
    assert verdict in wrasse("orphans", "why", key).out


def test_why_names_row_rule_and_history(place: Path) -> None:
    planned(place)
    wrasse("orphans", "apply", "plan.jsonl")
    facts = wrasse("orphans", "why", "archives/ws1/new/home.tar.gz", "--json").json
    assert (facts["reference"]["rule"], facts["reference"]["owner"]) in (("op_id", "ws1"), ("archive_key", "ws1"))
    gone = wrasse("orphans", "why", "archives/ws1/old/home.tar.gz", "--json").json
    assert (gone["sighting"]["state"], gone["journal"][0]["verb"]) == ("moved", "quarantine")
    assert "in quarantine" in gone["verdict"]


def test_sightings_of_a_root_are_listed_by_state(place: Path) -> None:
    planned(place)
    (seen,) = wrasse("orphans", "list", "archives", "--json").json["sightings"]
    assert (seen["unit"], seen["evidence"], seen["scans"]) == ("archives/ws1/old/", "superseded", 2)
    assert wrasse("orphans", "list", "archives", "--state=moved", "--json").json["sightings"] == []


def test_an_unknown_root_and_an_unknown_run_are_told(place: Path) -> None:
    assert "write 'archives'" in wrasse("orphans", "plan", "archive").err
    assert wrasse("orphans", "undo", "01KD3Z8Q6Y8M5B9W0X2V7T4N1R").code == 2


def test_without_a_root_the_page_that_tells_how_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "reclaim-storage" in wrasse("orphans", "list").out
    assert "reclaim-storage" in wrasse("orphans", "plan").err


@pytest.mark.parametrize(("line", "why"), [
    ("superseded: 1h\n    writer_timeout: 30m\n    writer_retries: 3", "shorter than a write may take"),
    ("quarantine_by: burn", "quarantine_by is 'burn'"),
    ("templat: x/{y}", "write 'template'"),
    ("database: oracle://x/y", "oracle"),
])  # fmt: skip
def test_mistakes_in_a_root_are_told_before_anything_runs(place: Path, line: str, why: str) -> None:
    head = "orphans:\n  archives:\n    preset: workspaces\n"
    database = "" if "database" in line else "    database: sqlite:app.db\n"
    (place / "wrasse.yaml").write_text(f"{head}{database}    {line}\n")
    answer = wrasse("orphans", "plan")
    assert (answer.code, why in answer.err) == (2, True), answer.err


INSIDE = {"the store": ("wrasse-data", "archives/ws1/"), "its directory": ("./wrasse-data/archives", "ws1/"),
          "the same in full": ("//{}/wrasse-data/", "archives/")}  # fmt: skip


@pytest.mark.parametrize("named", INSIDE)
def test_a_root_inside_another_is_refused(place: Path, named: str) -> None:
    store, prefix = (each.format(place) for each in INSIDE[named])
    inside = f"  deep:\n    template: {prefix}{{op}}/{{file}}\n    store: 'file:{store}'\n    database: sqlite:app.db\n"
    (place / "wrasse.yaml").write_text(CONFIG + inside + "    queries: [workspaces]\n")
    answer = wrasse("orphans", "list")
    assert (answer.code, "is nested with the root archives" in answer.err) == (2, True)


def test_the_documents_variables_set_interval_and_delay(place: Path) -> None:
    environ = {"GC_INTERVAL": "1800", "GC_ORPHAN_DELAY": "3600"}
    answer = wrasse("config", "show", "--json", env=environ)
    assert answer.code == 0, answer.err
    assert "3600" in answer.out
    (place / "wrasse.yaml").write_text("orphans: {archives: {preset: workspaces, database: 'sqlite:app.db'}}")
    refused = wrasse("orphans", "plan", env=environ)
    assert (refused.code, "shorter than a write" in refused.err) == (2, True)
