"""What holds for every test: long forms only with `--full`, one seed for the run, real servers once per run.

Every server is started by the first test of a process that asks for it, and serves all of them: a test uses names
(a database number, a bucket, a schema, a key root) of its own.
"""

from __future__ import annotations

import os
import random
import secrets
import shlex
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

import fast_place
import seeds
from servers.cluster import SHARED_CLUSTER
from servers.mariadb import NAMED as MYSQL, mariadb
from servers.nats import SHARED_NATS, Nats
from servers.postgres import postgres
from servers.seaweed import S3, careless_s3, seaweed
from servers.valkey import SHARED, Valkey, newest
from wrasse.config import redaction
from wrasse.config.schema import leaves

# Without shrinking: on a real backend that takes longer than a test may, and then a timeout is all that is seen of what
# was found. `--hypothesis-profile=shrink` looks for a smaller example.
settings.register_profile("shrink", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "wrasse", parent=settings.get_profile("shrink"), phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
settings.register_profile("fixed", parent=settings.get_profile("wrasse"), derandomize=True, database=None)
settings.load_profile("fixed")
# Hypothesis also draws constants of all modules that are loaded when a test runs, which depends on the tests that this
# process ran before: the same seed would not make the same choices. There is no setting for that.
assert callable(providers._get_local_constants), "hypothesis has another name for it now"
providers._get_local_constants = providers.Constants

LEFT_OUT = {}  # files of tests to what is missing for them; every run names them
if not MYSQL:
    _why = "no MariaDB or MySQL is named by WRASSE_TEST_MYSQL"
    LEFT_OUT |= {"backends/sql/test_mysql_catalog.py": _why, "orphans/test_mysql.py": _why}
if find_spec("atheris") is None:
    LEFT_OUT["unit/test_fuzzed_decoders.py"] = "atheris has no wheel for this Python or machine"
collect_ignore = list(LEFT_OUT)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="also run the long forms of tests, marked `full`, with a new seed"
    )
    parser.addoption("--seed", type=int, help="the seed of all random choices; fixed by default, a new one with --full")


_PLACE = pytest.StashKey[Path]()
_SHOWN_MAX = 20


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its own options
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # a worker of xdist has the seed of its controller
        config.option.seed = int(seeds.text())
    elif config.option.seed is None:
        config.option.seed = secrets.randbelow(seeds.MAX) if config.option.full else seeds.FIXED
    seeds.settle(config.option.seed)
    if config.option.seed != seeds.FIXED:
        settings.load_profile("wrasse")
        config.option.hypothesis_seed = str(config.option.seed)
    if not hasattr(config, "workerinput") and (place := fast_place.settle()) is not None:  # workers inherit it
        config.stash[_PLACE] = place


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    long = [item for item in items if item.get_closest_marker("full")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_sessionstart(session: pytest.Session) -> None:
    _tell_seed(session.config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    _tell_seed(config, failed=True)
    for file, missing in LEFT_OUT.items():
        terminalreporter.write_line(f"left out: tests/{file}: {missing}")


def _tell_seed(config: pytest.Config, *, failed: bool = False) -> None:
    """The seed, and how to run again with it: at the start, and for each test that failed at the end."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or config.option.seed == seeds.FIXED:
        return
    full = "--full " if config.option.full else ""
    again = f"python3 dev.py test {full}--seed={config.option.seed}"
    if not failed:
        terminal.write_line(f"seed {config.option.seed}; the same again: {again}")
    for report in [*terminal.stats.get("failed", ()), *terminal.stats.get("error", ())][:_SHOWN_MAX] if failed else ():
        terminal.write_line(f"again: {again} {shlex.quote(report.nodeid)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that is skipped, since something it needs is missing, has failed. What a backend declares that it
    does not have (`needs`, see tests/conformance/conftest.py) is left out everywhere, and listed at the end."""
    report = yield
    declared = item.get_closest_marker("needs") and "left out:" in str(report.longrepr)
    if report.skipped and os.environ.get("CI") and not declared and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"skipped, which CI does not allow: {report.longrepr}"
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    random.seed(f"{seeds.text()} {item.nodeid}")


def pytest_unconfigure(config: pytest.Config) -> None:
    SHARED.stop()
    SHARED_CLUSTER.stop()
    SHARED_NATS.stop()
    if _PLACE in config.stash:
        fast_place.leave(config.stash[_PLACE])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory for commands that are typed, with none of the caller's settings."""
    seed_names = {leaf.seed_env for leaf in leaves().values()}
    for name in list(os.environ):
        if name.startswith("WRASSE_") or name in seed_names:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _secrets_end_with_their_test() -> Iterator[None]:
    """What the settings of one test hold as a secret is not cut out of the texts of the next."""
    before = set(redaction._known)
    yield
    redaction._known.intersection_update(before)


@pytest.fixture(scope="session")
def redis_server() -> Valkey:
    """One Valkey for all tests of this process, without persistence. Never restart or flush it: start your own."""
    return SHARED.at(newest())


@pytest.fixture(scope="session")
def nats_server() -> Nats:
    """One NATS with JetStream for all tests of this process. Never restart it: start your own."""
    return SHARED_NATS.get()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """One SeaweedFS for all tests of this process."""
    with seaweed() as server:
        yield server


@pytest.fixture(scope="session")
def careless_store() -> Iterator[S3]:
    """An S3 that ignores conditions."""
    with careless_s3() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """One PostgreSQL for all tests of this process; make a schema or a database of your own in it."""
    with postgres() as url:
        yield url


@pytest.fixture(scope="session")
def mysql_url() -> Iterator[str]:
    """MariaDB or MySQL, as WRASSE_TEST_MYSQL names it; make a database of your own in it."""
    with mariadb() as url:
        yield url
