"""The style guide as a test: the project keeps every rule, and every rule refuses what it forbids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tools.tidy import completeness, conduct, imports, naming, prose, shape, testing
from tools.tidy.rules import RULES, apply_rule
from tools.tidy.source import Project, Source, read_project

Files = dict[str, str]
Rule = Callable[[Any], Any]

LONG = "def long():\n" + "    x = 1\n" * 61
PORT = '"""P: a port.\n\nPromise. It keeps.\n\nCosts. One round trip.\n"""\nclass P(Protocol):\n    x: int\n'

# For each rule: files it must refuse, and files it must let pass.
CASES: list[tuple[Rule, Files, Files]] = [
    (
        imports.imports_point_downwards,
        {"src/wrasse/ports/x.py": "from wrasse.engine.run import run_once"},
        {"src/wrasse/sweeps/x.py": "from wrasse.engine.sweep import Keep"},
    ),
    (
        imports.imports_point_downwards,
        {"src/wrasse/jobs/x.py": "def f():\n    import wrasse.leases.lease"},
        {"src/wrasse/archives/x.py": "import wrasse.leases.lease"},
    ),
    (
        imports.imports_point_downwards,
        {"src/wrasse/engine/x.py": "from wrasse import sweeps"},
        {"src/wrasse/engine/x.py": "from wrasse import errors"},
    ),
    (
        imports.imports_point_downwards,
        {"src/wrasse/backends/memory/x.py": "from wrasse.backends.sqlite.connect import Sqlite"},
        {"src/wrasse/backends/sqlite/x.py": "from wrasse.backends.sqlite.connect import Sqlite"},
    ),
    (
        imports.imports_point_downwards,
        {"src/wrasse/cli/main.py": "from wrasse.backends.sqlite.connect import Sqlite"},
        {"src/wrasse/runtime/backends.py": "from wrasse.backends.sqlite.connect import Sqlite"},
    ),
    (
        imports.imports_point_downwards,
        {"src/wrasse/ports/x.py": "from . import page"},
        {"src/wrasse/ports/x.py": "from wrasse.ports import page"},
    ),
    (
        imports.imports_point_downwards,
        {"src/wrasse/config/x.py": "from wrasse.backends.redis.connect import Redis"},
        {"src/wrasse/config/x.py": "from wrasse.backends.redis.options import RedisOptions"},
    ),
    (
        imports.imports_point_downwards,
        {"src/wrasse/config/x.py": "from wrasse.jobs.producer import Producer"},
        {"src/wrasse/config/x.py": "from wrasse.jobs.periodic import parse_cron"},
    ),
    (shape.files_are_short, {"src/wrasse/x.py": "x = 1\n" * 601}, {"src/wrasse/x.py": "x = 1\n" * 600}),
    (
        shape.functions_are_short,
        {"src/wrasse/x.py": LONG},
        {"src/wrasse/x.py": 'def f():\n    """' + "word\n" * 80 + '"""\n    return 1\n'},
    ),
    (shape.files_say_what_they_are_for, {"src/wrasse/x.py": "x = 1"}, {"src/wrasse/x/__init__.py": ""}),
    (shape.files_are_named_for_a_thing, {"src/wrasse/jobs/utils.py": ""}, {"src/wrasse/jobs/retry.py": ""}),
    (shape.files_are_named_for_a_thing, {"tests/common/x.py": ""}, {"tests/faults.py": ""}),
    (
        shape.public_names_have_docstrings,
        {"src/wrasse/x.py": "class Lease: ..."},
        {"src/wrasse/x.py": "class _Lease: ..."},
    ),
    (
        naming.files_are_named_by_nouns,
        {"src/wrasse/jobs/taking.py": ""},
        {"src/wrasse/observability/tracing.py": "", "src/wrasse/jobs/reaper.py": "", "tests/x/taking.py": ""},
    ),
    (naming.files_are_named_by_nouns, {"src/wrasse/streams/retired.py": ""}, {"src/wrasse/streams/seed.py": ""}),
    (naming.files_are_named_by_nouns, {"src/wrasse/backends/nats/lane_pool.py": ""}, {"src/wrasse/jobs/txn.py": ""}),
    (naming.files_are_named_by_nouns, {"src/wrasse/leases/known.py": ""}, {"src/wrasse/leases/known_ids.py": ""}),
    (naming.files_are_named_by_nouns, {"src/wrasse/settling/x.py": ""}, {"src/wrasse/testing/x.py": ""}),
    (
        naming.class_names_are_unique,
        {"src/wrasse/x.py": "class Entry: ...", "src/wrasse/y.py": "class Entry: ..."},
        {
            "src/wrasse/api/app.py": "class App: ...\nclass _Entry: ...",
            "src/wrasse/api/sync.py": "class App: ...\nclass _Entry: ...",
            "tests/x.py": "class App: ...",
        },
    ),
    (
        naming.packages_are_small,
        {f"src/wrasse/jobs/{chr(97 + n)}.py": "" for n in range(26)},
        {f"src/wrasse/jobs/{name}.py": "" for name in ("__init__", *"abcdefghijklmnopqrstuvwxy")},
    ),
    (
        naming.families_are_packages,
        {f"src/wrasse/cli/{name}.py": "" for name in ("jobs", "jobs_put", "jobs_list")},
        {f"src/wrasse/cli/{name}.py": "" for name in ("jobs/jobs", "jobs_put", "jobs_list", "job")},
    ),
    (
        imports.imports_have_no_cycles,
        {
            "src/wrasse/jobs/x.py": "from wrasse.jobs import y",
            "src/wrasse/jobs/y.py": "from wrasse.jobs.z import Z",
            "src/wrasse/jobs/z.py": "def f():\n    import wrasse.jobs.x",
        },
        {
            "src/wrasse/jobs/x.py": "from wrasse.jobs import y",
            "src/wrasse/jobs/y.py": "if TYPE_CHECKING:\n    import wrasse.jobs.x\nimport wrasse.jobs.z",
            "src/wrasse/jobs/z.py": "",
        },
    ),
    (
        completeness.unit_tests_are_named_after_modules,
        {"src/wrasse/jobs/retry.py": "", "tests/unit/jobs/test_again.py": ""},
        {
            "src/wrasse/jobs/retry.py": "",
            "src/wrasse/ids.py": "",
            "tests/unit/jobs/test_retry.py": "",
            "tests/unit/jobs/test_retry_delays.py": "",
            "tests/unit/test_ids.py": "",
        },
    ),
    (
        completeness.unit_tests_are_named_after_modules,
        {"src/wrasse/jobs/retry.py": "", "tests/unit/streams/test_retry.py": ""},
        {"tests/unit/jobs/scene.py": ""},
    ),
    (
        shape.values_are_frozen,
        {"src/wrasse/x.py": "@dataclass(frozen=True)\nclass Lease: ..."},
        {"src/wrasse/x.py": "@dataclass(frozen=True, slots=True)\nclass Lease: ..."},
    ),
    (
        shape.values_are_frozen,
        {"src/wrasse/x.py": "@dataclass\nclass Lease: ..."},
        {"src/wrasse/x.py": "@dataclass\nclass _Lease: ..."},
    ),
    (
        shape.borders_are_typed,
        {"src/wrasse/x.py": "def put(**kwargs): ..."},
        {"src/wrasse/x.py": "def put(*, delay): ..."},
    ),
    (
        conduct.only_the_clock_asks_for_the_time,
        {"src/wrasse/x.py": "import time\ntime.monotonic()"},
        {"src/wrasse/clock.py": "import time\ntime.monotonic()"},
    ),
    (
        conduct.only_the_clock_asks_for_the_time,
        {"src/wrasse/x.py": "from time import sleep as nap\nnap(1)"},
        {"src/wrasse/x.py": "clock.now()"},
    ),
    (
        conduct.only_the_clock_asks_for_the_time,
        {"src/wrasse/x.py": "from datetime import datetime\nf(datetime.now)"},
        {"tests/x.py": "import time\ntime.time()"},
    ),
    (
        conduct.only_the_clock_asks_for_the_time,
        {"src/wrasse/x.py": "asyncio.get_running_loop().time()"},
        {"src/wrasse/x.py": "clock.monotonic()"},
    ),
    (
        conduct.only_the_clock_asks_for_the_time,
        {"src/wrasse/x.sql": "SELECT strftime('%s', 'now')"},
        {"src/wrasse/x.sql": "SELECT ?1"},
    ),
    (conduct.nothing_is_printed, {"src/wrasse/x.py": "print(1)"}, {"src/wrasse/x.py": "click.echo(1)"}),
    (
        conduct.errors_are_not_swallowed,
        {"src/wrasse/x.py": "try:\n    f()\nexcept:\n    raise"},
        {"src/wrasse/x.py": "try:\n    f()\nexcept KeyError:\n    pass"},
    ),
    (
        conduct.errors_are_not_swallowed,
        {"tests/x.py": "try:\n    f()\nexcept Exception:\n    pass"},
        {"tests/x.py": "try:\n    f()\nexcept Exception:\n    n += 1"},
    ),
    (
        conduct.errors_are_not_swallowed,
        {"src/wrasse/x.py": "with suppress(Exception):\n    f()"},
        {"src/wrasse/x.py": "with suppress(KeyError):\n    f()"},
    ),
    (
        conduct.tasks_have_an_owner,
        {"src/wrasse/x.py": "import asyncio\nasyncio.create_task(f())"},
        {"src/wrasse/x.py": "group.create_task(f())"},
    ),
    (conduct.no_notes_are_left, {"src/wrasse/x.py": "# TO" + "DO: later"}, {"src/wrasse/x.py": "# todos are issues"}),
    (conduct.assertions_stay_on, {"dev.py": '["python3", "-' + 'O", "x.py"]'}, {"dev.py": '["python3", "x.py"]'}),
    (
        prose.text_means_the_same_everywhere,
        {"docs/x.md": "see /wo" + "rk/main"},
        {"docs/x.md": "see ./work and https://example.com/home"},
    ),
    (
        prose.text_means_the_same_everywhere,
        {"requirements.lock": "--index" + "-url https://mirror.example"},
        {"requirements.lock": "click==8.2.1"},
    ),
    (
        prose.text_means_the_same_everywhere,
        {"src/x.py": "# Co-Auth" + "ored-By: nobody"},
        {"src/x.py": "# the author of a handler"},
    ),
    (prose.pages_have_one_title, {"docs/x.md": "no title"}, {"docs/x.md": "# Title\n\n```sh\n# a comment\n```\n"}),
    (
        prose.pages_have_one_title,
        {"docs/x.md": "# One\n\n# Two"},
        {"docs/x.md": "# One\n\n## Two\n\n### Three\n\n## Four"},
    ),
    (prose.pages_have_one_title, {"docs/x.md": "# One\n\n### Three"}, {"docs/x.md": "# One\n\n## Two"}),
    (prose.pages_have_one_title, {"docs/x.md": "# One."}, {"docs/x.md": "# One?"}),
    (
        testing.tests_are_named_as_sentences,
        {"tests/x.py": "def test_put(): assert 1"},
        {"tests/x.py": "def test_a_put_is_kept(): assert 1"},
    ),
    (
        testing.tests_can_fail,
        {"tests/x.py": "def test_a_put_is_kept(): put()"},
        {"tests/x.py": "def law(): assert 1\ndef test_a_put_is_kept(): law()"},
    ),
    (
        testing.tests_are_not_skipped,
        {"tests/x.py": '@pytest.mark.skip("later")\ndef test_x(): ...'},
        {"tests/x.py": "@pytest.mark.full\ndef test_x(): ..."},
    ),
    (
        testing.our_own_code_is_not_mocked,
        {"tests/x.py": "from unittest import mock"},
        {"tests/x.py": "from wrasse.clock import ManualClock"},
    ),
    (completeness.sweeps_are_complete, {"src/wrasse/sweeps/stuck_jobs.py": ""}, {}),
    (completeness.sweeps_are_complete, {"docs/sweeps/stuck_jobs.md": "# Stuck jobs"}, {"docs/start.md": "# Start"}),
    (
        completeness.ports_are_complete,
        {"src/wrasse/ports/records.py": PORT, "tests/conformance/test_records.py": ""},
        {"src/wrasse/ports/records.py": PORT, "tests/conformance/test_p.py": ""},
    ),
    (
        completeness.ports_are_small,
        {"src/wrasse/ports/records.py": '"""Records."""\nclass P(Protocol):\n    x: int\n'},
        {"src/wrasse/ports/records.py": PORT},
    ),
    (
        completeness.ports_are_small,
        {"src/wrasse/ports/records.py": PORT + "".join(f"    async def m{n}(self): ...\n" for n in range(11))},
        {"src/wrasse/ports/records.py": PORT},
    ),
]


def project_of(files: Files) -> Project:
    return Project(tuple(Source(path, text) for path, text in files.items()))


@pytest.fixture(scope="module")
def project() -> Project:
    return read_project()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps_the_rule(rule: Rule, project: Project) -> None:
    problems = [str(problem) for problem in apply_rule(rule, project)]
    assert not problems, f"{rule.__doc__}\n" + "\n".join(problems)


@pytest.mark.parametrize(("rule", "bad", "good"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_rule_refuses_what_it_forbids_and_nothing_else(rule: Rule, bad: Files, good: Files) -> None:
    refused = list(apply_rule(rule, project_of(bad)))
    assert refused
    assert all(problem.what and problem.do for problem in refused), "says what is wrong and what to do"
    assert not list(apply_rule(rule, project_of(good)))


def test_every_rule_has_been_seen_to_bite() -> None:
    assert {case[0].__name__ for case in CASES} == {rule.__name__ for rule in RULES}


def test_the_project_is_read_whole(project: Project) -> None:
    read = project.by_path.keys()
    assert {"README.md", "dev.py", ".ci/run", "src/wrasse/engine/sweep.py", "tests/test_tidy.py"} <= read
