"""How every command behaves: exit codes, errors in two lines, JSON on stdout, help with examples."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import wrasse as package
from cli.command_line import typed, wrasse
from wrasse.cli.main import LazyGroup, wrasse as root

pytestmark = pytest.mark.usefixtures("place")


def commands(group: LazyGroup = root, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.homes:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, LazyGroup):
            yield from commands(command, (*path, name))


ALL = list(commands())


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_every_command_has_help_with_examples(path: tuple[str, ...], command: click.Command) -> None:
    text = f"{command.help}{command.epilog}"
    assert "Examples:" in text
    assert f"wrasse {' '.join(path)}" in text
    assert wrasse(*path, "--help").code == 0


LEAVES = [path for path, command in ALL if not isinstance(command, LazyGroup) and path not in (("demo",), ("bench",))]


@pytest.mark.parametrize("path", LEAVES, ids=[" ".join(path) for path in LEAVES])
def test_every_command_takes_the_same_four_options(path: tuple[str, ...]) -> None:
    text = wrasse(*path, "--help").out
    assert all(option in text for option in ("--config", "--set", "--json", "--debug"))


def test_the_version_is_shown_without_reading_the_configuration(place: Path) -> None:
    (place / "wrasse.yaml").write_text("{ this is: [not yaml")
    answer = typed("--version", cwd=place)
    assert (answer.code, answer.out) == (0, f"wrasse {package.__version__}\n")


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n'.join(sys.modules))"], capture_output=True, check=True
    )
    return set(done.stdout.decode().split())


def test_importing_wrasse_loads_nothing_but_itself() -> None:
    heavy = {"asyncio", "click", "yaml", "msgspec", "aiohttp", "apsw", "rich", "prometheus_client", "logging"}
    assert not loaded_by("import wrasse") & heavy


def test_the_commands_that_only_read_load_neither_the_web_server_nor_tables() -> None:
    code = "from wrasse.cli.main import main\ntry:\n    main(['jobs', 'stats'])\nexcept SystemExit:\n    pass"
    assert not loaded_by(code) & {"aiohttp", "rich", "prometheus_client"}


@pytest.mark.parametrize(
    ("typo", "meant"), [(("jbos",), "'jobs'"), (("jobs", "lst"), "'list'"), (("config", "chek"), "'check'")]
)
def test_a_typing_error_is_answered_with_the_nearest_command(typo: tuple[str, ...], meant: str) -> None:
    answer = wrasse(*typo)
    assert answer.code == 2
    assert answer.err.startswith("error: there is no command")
    assert f"do: write {meant}" in answer.err


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ((), 0),
        (("jobs",), 0),
        (("jobs", "stats"), 0),
        (("jobs", "stats", "--bogus"), 2),
        (("jobs", "show"), 2),
        (("jobs", "list", "--limit=0"), 2),
        (("jobs", "list", "--state=nowhere"), 2),
        (("jobs", "dead", "--since=5"), 2),
        (("run", "--role=juggler"), 2),
        (("sweep", "stuk-jobs"), 2),
        (("jobs", "stats", "--set", "backends.jobs=sqlite:no/such/dir/x.db"), 1),
        (("jobs", "purge", "dead"), 3),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_exit_codes_tell_what_happened(args: tuple[str, ...], code: int) -> None:
    answer = wrasse(*args)
    assert answer.code == code
    assert ("error: " in answer.err, "do: " in answer.err) == (code > 0, code > 0)
    assert "Traceback" not in answer.err


def test_an_error_of_ours_shows_no_traceback_unless_asked(place: Path) -> None:
    (place / "wrasse.yaml").write_text("worker: {count: 0}")
    plain, debug = typed("jobs", "stats", cwd=place), typed("jobs", "stats", "--debug", cwd=place)
    said = "error: wrasse.yaml line 1: worker.count is 0: a worker without a slot runs no jobs\ndo: use 1 or more\n"
    assert (plain.code, plain.err) == (2, said)
    assert "Traceback" in debug.err


@pytest.mark.parametrize("args", [("jobs", "show"), ("journal", "--suspect"), ("explain",)])
def test_a_name_that_is_not_utf_8_is_a_usage_error(args: tuple[str, ...]) -> None:
    assert wrasse("jobs", "enqueue", "x").code == 0
    answer = wrasse(*args, "\udcff")
    assert (answer.code, answer.err.splitlines()[0]) == (2, "error: '\\udcff' is not UTF-8")


def test_warnings_go_to_stderr_and_json_alone_to_stdout() -> None:
    answer = wrasse("jobs", "stats", "--json", "--set", "redis.password=theirs")
    assert answer.json["queues"] == []
    assert "only Redis uses redis.password" in answer.err


@pytest.mark.parametrize("args", [("jobs", "stats"), ("config", "check"), ("run",), ("doctor",)])
def test_a_settings_file_that_does_not_exist_is_refused_with_its_path(place: Path, args: tuple[str, ...]) -> None:
    answer = wrasse(*args, f"--config={place}/missing.yaml")
    assert (answer.code, f"{place}/missing.yaml does not exist" in answer.err) == (2, True)
    assert os.listdir(place) == []


def test_config_shows_which_backend_serves_what_and_creates_nothing(place: Path) -> None:
    told = wrasse("config", "show", "--where", "--set", "backends.jobs=redis://u:hunter2@r:1/0")
    assert "redis://***@r:1/0" in told.out
    assert "command line: backends.jobs" in told.out
    assert "no backend serves objects" in told.out
    rows = wrasse("config", "show", "--where", "--json").json["backends"]
    assert rows[0] == {
        "port": "jobs", "backend": f"sqlite://{place}/wrasse.db", "by": "default",
        "holds": "jobs, results, heartbeats of workers, when periodic jobs ran", "refused": "",
    }  # fmt: skip
    assert os.listdir(place) == []


def test_every_command_that_reads_answers_with_json() -> None:
    for args in (
        ("jobs", "list"), ("jobs", "dead"), ("jobs", "peek"), ("jobs", "stats"), ("journal",), ("sweep", "--list"),
        ("sweep", "--dry-run"), ("sweep",), ("doctor",), ("config", "show"), ("config", "check"),
    ):  # fmt: skip
        answer = wrasse(*args, "--json")
        assert isinstance(answer.json, dict), args
        assert answer.code == 0, args


def test_a_setting_on_the_command_line_counts_for_this_call(place: Path) -> None:
    wrasse("jobs", "enqueue", "--set", "backends.jobs=sqlite:other.db", "--id=there", "x")
    assert (place / "other.db").exists()
    assert wrasse("jobs", "show", "there").code == 2
    assert wrasse("jobs", "show", "there", "--set=backends.jobs=sqlite:other.db").code == 0


def test_a_set_without_a_value_or_a_known_name_is_a_usage_error() -> None:
    assert "has no value" in wrasse("config", "show", "--set=worker.count").err
    assert "write 'worker.count'" in wrasse("config", "show", "--set=worker.cout=1").err


def test_a_reader_that_has_seen_enough_is_no_error(place: Path) -> None:
    typed("jobs", "enqueue", "--lines", stdin=b"\n".join(b"%d" % n for n in range(1000)), cwd=place)
    command = f"{sys.executable} -m wrasse jobs list --state=ready --limit=1000 | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=place, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_settings_are_shown_with_their_source_and_without_secrets(place: Path) -> None:
    (place / "wrasse.yaml").write_text("redis:\n  password: hunter2\nbackends: {jobs: 'redis://u:hunter3@h/x'}\n")
    bad = wrasse("config", "show")
    assert bad.code == 2
    (place / "wrasse.yaml").write_text("redis:\n  password: hunter2\nworker:\n  count: 3\n")
    answer = wrasse("config", "show", env={"WRASSE_WORKER_GRACE": "9s"})
    assert "count: 3  # wrasse.yaml line 4" in answer.out
    assert "grace: 9s  # environment variable WRASSE_WORKER_GRACE" in answer.out
    assert "hunter" not in answer.out + answer.err + bad.out + bad.err


def test_only_what_was_changed_is_shown_on_request() -> None:
    shown = wrasse("config", "show", "--changed", "--json", "--set=worker.count=3").json
    assert shown == {"worker.count": {"value": 3, "source": "command line"}}


def test_check_passes_what_is_right_and_refuses_a_backend_this_version_lacks(place: Path) -> None:
    assert wrasse("config", "check").code == 0
    (place / "wrasse.yaml").write_text("backends: {jobs: 'postgresql://127.0.0.1/x'}")
    answer = wrasse("config", "check")
    assert answer.code == 2
    assert "no postgresql backend" in answer.err


def test_a_file_named_in_the_environment_is_read(place: Path) -> None:
    (place / "prod.yaml").write_text("worker: {count: 5}")
    shown = wrasse("config", "show", "--json", env={"WRASSE_CONFIG": "prod.yaml"}).json
    assert shown["worker.count"] == {"value": 5, "source": "prod.yaml line 1"}


def test_doctor_says_what_is_well() -> None:
    assert wrasse("sweep").code == 0
    answer = wrasse("doctor", "--json")
    assert (answer.code, answer.json["ok"]) == (0, True)
    checks = {each["check"] for each in answer.json["checks"]}
    assert checks == {"version", "config", "modes", "disk", "backend", "place", "clock", "workers", "sweeps"}


def test_doctor_shows_what_the_backends_in_use_can_do() -> None:
    shown, told = wrasse("doctor").out, wrasse("doctor", "--json").json["capabilities"]
    assert re.search(r"CAPABILITY +SQLITE +FILE\n", shown)
    assert re.search(r"\nstreams +yes +no *\n", shown)
    assert (told["sqlite"]["streams"], told["file"]["streams"]) == (True, False)


def test_doctor_prints_what_a_directory_was_found_to_have() -> None:
    assert wrasse("sweep", "--set", "backends.records=file:data").code == 0
    answer = wrasse("doctor", "--json", "--set", "backends.records=file:data")
    (probe,) = [each["what"] for each in answer.json["checks"] if each["check"] == "probe"]
    assert (answer.code, "hard links, locks" in probe) == (0, True)


@pytest.mark.parametrize("content", [b"this is no database\n" * 100, None], ids=["a letter", "a directory"])
def test_a_database_that_is_none_is_one_clear_error_and_stays_as_it_is(place: Path, content: bytes | None) -> None:
    path, words = place / "wrasse.db", "is not a database"
    path.mkdir() if content is None else path.write_bytes(content)
    answers = [wrasse("jobs", "enqueue", "x"), wrasse("jobs", "stats"), wrasse("sweep")]
    assert [(each.code, words in each.err, "do: " in each.err) for each in answers] == [(1, True, True)] * 3
    doctor = wrasse("doctor", "--json")
    assert doctor.code == 1
    assert [each for each in doctor.json["checks"] if each["state"] == "fail" and words in each["what"]]
    assert content is None or path.read_bytes() == content


def test_a_full_disk_is_one_clear_error_and_loses_nothing(place: Path) -> None:
    assert typed("jobs", "enqueue", "--id=before", "x", cwd=place).code == 0
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20));"
        "from wrasse.cli.main import main; main(['jobs', 'enqueue', '--id=big'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited], input=b"x" * (8 << 20), cwd=place, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: ")
    assert b"\ndo: " in done.stderr
    jobs = json.loads(typed("jobs", "list", "--json", cwd=place).raw)["jobs"]
    assert [job["id"] for job in jobs] == ["before"]


def test_what_was_put_before_the_disk_was_full_is_told(place: Path) -> None:
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20));"
        "from wrasse.cli.main import main; main(['jobs', 'enqueue', '--lines'])"
    )
    lines = b"x\n" * 1000 + (b"y" * 4_000 + b"\n") * 1000
    done = subprocess.run(
        [sys.executable, "-c", limited], input=lines, cwd=place, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, b"; 1000 jobs before it were enqueued and stay\ndo: " in done.stderr) == (1, True)
    assert done.stderr.endswith(b", then enqueue the rest\n")


def test_a_read_only_directory_is_one_clear_error() -> None:
    answer = wrasse("jobs", "enqueue", "x", "--set=backends.jobs=sqlite:///proc/wrasse.db")
    assert answer.code == 1
    assert "/proc/wrasse.db cannot be" in answer.err
    assert "do: " in answer.err


def test_bench_says_where_the_benchmarks_are(place: Path) -> None:
    answer = typed("bench", cwd=place)
    assert (answer.code, "python3 dev.py bench" in answer.err) == (2, True)


def test_bench_runs_what_a_checkout_has(place: Path) -> None:
    (place / "bench").mkdir()
    (place / "bench" / "__init__.py").write_text("")
    (place / "bench" / "__main__.py").write_text("import sys; print('measuring', sys.argv[1:])")
    assert typed("bench", "jobs_sqlite", "--quick", cwd=place).out == "measuring ['jobs_sqlite', '--quick']\n"


def test_a_store_that_is_named_and_does_not_exist_is_said() -> None:
    typo = wrasse("jobs", "list", "--set=backends.jobs=sqlite:typo.db")
    assert (typo.code, "typo.db (command line: backends.jobs) does not exist yet" in typo.err) == (0, True)
    assert wrasse("jobs", "list").err == ""


def test_a_name_that_is_no_text_is_refused_before_any_store_is_there(place: Path) -> None:
    answer = typed("jobs", "show", "a\udcff", cwd=place)
    assert answer.code == 2
    assert "is not UTF-8" in answer.err


def test_the_whole_story_of_an_error_hides_secrets(place: Path) -> None:
    pasted = "redis://user:a-long-secret@127.0.0.1:1/0"  # in the wrong setting, whose error quotes it
    answer = typed("jobs", "stats", "--debug", "--set", f"engine.lease={pasted}", cwd=place)
    assert "Traceback" in answer.err
    assert "'redis://***@127.0.0.1:1/0' is not a duration" in answer.err


def test_doctor_says_what_it_would_check_in_a_store_that_is_not_there(place: Path) -> None:
    answer = typed("doctor", cwd=place)
    assert "not checked, since" in answer.out
    assert not list(place.glob("*.db"))
