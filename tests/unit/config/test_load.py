"""Configuration: where settings come from, who wins, and how every mistake is told."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from wrasse.config.dump import shown, written
from wrasse.config.load import Config, load
from wrasse.config.schema import leaves
from wrasse.duration import format_duration
from wrasse.errors import ConfigError, UnknownName

NOTHING: Mapping[str, str] = {}

SEED = """
redis:
  addr: 10.0.0.5:6379
  username: app
  password: hunter2
  db: 3
  pool_size_multiplier: 4
  min_idle_conns: 2
  dial_timeout: 4s
  read_timeout: 2s
  write_timeout: 2s
  max_retries: 1
worker:
  count: 8
  heartbeat_ttl: 20s
  max_retries: 5
  backoff: { base: 250ms, max: 1m }
  priorities: [urgent, high, low]
  queues: { urgent: "jobqueue:urgent", high: "jobqueue:high_priority", low: "jobqueue:low_priority" }
  processing_list_pattern: "jobqueue:worker:%s:processing"
  heartbeat_key_pattern: "jobqueue:processing:worker:%s"
  completed_list: "jobqueue:completed"
  dead_letter_list: "jobqueue:dead_letter"
  brpoplpush_timeout: 250ms
producer:
  scan_dir: ./in
  include_globs: ["**/*.pdf"]
  exclude_globs: ["**/*.tmp"]
  default_priority: low
  high_priority_exts: [".pdf"]
  rate_limit_per_sec: 0
  rate_limit_key: "jobqueue:rate_limit:producer"
circuit_breaker:
  failure_threshold: 0.25
  window: 2m
  cooldown_period: 10s
  min_samples: 5
observability:
  metrics_port: 9091
  log_level: debug
  queue_sample_interval: 1s
  tracing: { enabled: true, endpoint: "http://127.0.0.1:4318" }
"""


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(text: str = "", environ: Mapping[str, str] = NOTHING, **overrides: str) -> Config:
    Path("wrasse.yaml").write_text(text)
    return load(environ=environ, overrides={name.replace("__", "."): value for name, value in overrides.items()})


def mistake(text: str, environ: Mapping[str, str] = NOTHING) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loaded(text, environ)
    return caught.value


def test_without_a_file_every_setting_has_its_default() -> None:
    config = load(environ={})
    assert (config.settings.worker.count, config.settings.worker.heartbeat_ttl) == (16, timedelta(seconds=30))
    assert config.sources == {}
    assert config.warnings == ()


@pytest.mark.parametrize(("file", "environ"), [("no/such.yaml", {}), (None, {"WRASSE_CONFIG": "no/such.yaml"})])
def test_a_named_file_that_does_not_exist_is_refused_with_its_path(file: str | None, environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"configuration file no/such\.yaml does not exist"):
        load(file, environ=environ)


@pytest.mark.parametrize(("file", "environ"), [("", {}), (None, {"WRASSE_CONFIG": ""})])
def test_a_file_whose_name_is_empty_is_refused_and_not_the_default(
    file: str | None, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrasse.yaml").touch()
    with pytest.raises(ConfigError, match="with an empty name does not exist"):
        load(file, environ=environ)


def test_a_file_with_the_other_ending_of_yaml_is_not_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrasse.yml").write_text("backends: {jobs: 'redis://h'}")
    with pytest.raises(ConfigError, match=r"settings are read from wrasse\.yaml"):
        load(environ={})
    assert load("wrasse.yml", environ={}).homes.jobs.startswith("redis://h")


def test_a_directory_is_no_settings_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{tmp_path} cannot be read: Is a directory"):
        load(tmp_path, environ={})


def test_an_empty_file_gives_defaults() -> None:
    assert loaded("# nothing yet\n").settings == load("/dev/null", environ={}).settings


def test_every_key_of_the_design_document_loads() -> None:
    config = loaded(SEED)
    seeds = {path for path, leaf in leaves().items() if leaf.key.seed} - {"worker.breaker_pause"}
    seeds -= {"gc.interval", "gc.orphan_delay"}  # variables only, of another document
    assert seeds <= set(config.sources)
    assert config.settings.worker.brpoplpush_timeout == timedelta(milliseconds=250)
    assert config.settings.worker.priorities == ("urgent", "high", "low")
    assert config.settings.observability.tracing.endpoint == "http://127.0.0.1:4318"


def test_the_command_line_beats_our_variable_beats_the_bare_one_beats_the_file_beats_the_default() -> None:
    file = "worker: {count: 2}"
    bare, ours = {"WORKER_COUNT": "3"}, {"WORKER_COUNT": "3", "WRASSE_WORKER_COUNT": "4"}
    counts = [
        loaded("").settings.worker.count,
        loaded(file).settings.worker.count,
        loaded(file, bare).settings.worker.count,
        loaded(file, ours).settings.worker.count,
        loaded(file, ours, worker__count="5").settings.worker.count,
    ]
    assert counts == [16, 2, 3, 4, 5]


def test_the_source_of_a_setting_is_remembered() -> None:
    config = loaded("worker:\n  count: 2\n  timeout: 5m\n", {"REDIS_DB": "1", "WRASSE_WORKER_GRACE": "1s"})
    assert config.sources["worker.timeout"] == "wrasse.yaml line 3"
    assert config.sources["worker.grace"] == "environment variable WRASSE_WORKER_GRACE"
    assert config.sources["redis.db"] == "environment variable REDIS_DB"


def in_environment(value: object) -> str:
    if isinstance(value, bool):
        return "false" if value else "true"
    if isinstance(value, int | float):
        return str(value + 0.01 if isinstance(value, float) else value + 1)
    if isinstance(value, timedelta):
        return format_duration(value + timedelta(seconds=1))
    if isinstance(value, tuple):
        return "high, low"
    return "{high: a, low: b}" if isinstance(value, Mapping) else "127.0.0.1:1"


NEEDS_OTHERS = ("backends.jobs", "worker.exec", "redis.credential_provider")


@pytest.mark.parametrize("path", [path for path in leaves() if path not in NEEDS_OTHERS])
def test_every_setting_has_a_variable(path: str) -> None:
    leaf = leaves()[path]
    text = {"observability.log_level": "error", "backends.records": "memory:", "engine.backend": "memory:",
            "backends.streams": "memory:", "backends.objects": "memory:", "archival": "[{stream: a.b}]",
            "archiver.streams": "[{stream: a.b}]", "periodic": "{a: {every: 5m}}",
            "orphans": "{a: {preset: workspaces, database: 'sqlite:app.db'}}",
            "retention": "{'a.>': 7d}", "task_types": "{mail: {workers: 2}}",
            "worker.weights": "{high: 6}", "worker.rates": "{high: 10/s}", "producer.default_priority": "high",
            "producer.watch": "poll", "nats.storage": "memory", "worker.http.refused": "fail", "leases.server": "http://127.0.0.1:1",
            "leases.tokens": "{ci: {token: 0123456789abcdef0123456789abcdef}}", "redis.client": "redis-py",
            }.get(path, in_environment(leaf.default))  # fmt: skip
    config = loaded("", {leaf.env: text})
    assert config.sources == {path: f"environment variable {leaf.env}"}
    (found,) = [each for each in shown(config) if each.leaf.path == path]
    assert found.value not in (leaf.default, "")


def test_the_provider_of_credentials_has_a_variable_beside_that_of_its_client() -> None:
    names = {"WRASSE_REDIS_CLIENT": "redis-py", "WRASSE_REDIS_CREDENTIAL_PROVIDER": "shop.login:provider"}
    config = loaded("", names)
    assert config.sources["redis.credential_provider"] == "environment variable WRASSE_REDIS_CREDENTIAL_PROVIDER"
    (found,) = [each for each in shown(config) if each.leaf.path == "redis.credential_provider"]
    assert found.value == "shop.login:provider"
    with pytest.raises(ConfigError, match="redis-py"):  # alone it is refused: only that client asks a provider
        loaded("", {"WRASSE_REDIS_CREDENTIAL_PROVIDER": "shop.login:provider"})


def test_a_mistake_within_a_section_names_the_variable_that_made_it() -> None:
    with pytest.raises(ConfigError, match=r"^environment variable WRASSE_REDIS_CLIENT: redis is invalid"):
        loaded("", {"WRASSE_REDIS_CLIENT": "no such client"})


def test_lists_come_with_commas_or_as_yaml_and_maps_as_yaml() -> None:
    config = loaded(
        "",
        {
            "PRODUCER_INCLUDE_GLOBS": "**/*.a, **/*.b",
            "WRASSE_PRODUCER_EXCLUDE_GLOBS": '["x,y"]',
            "WRASSE_WORKER_QUEUES": "{high: fast, low: slow}",
        },
    )
    assert config.settings.producer.include_globs == ("**/*.a", "**/*.b")
    assert config.settings.producer.exclude_globs == ("x,y",)
    assert config.settings.worker.queues == {"high": "fast", "low": "slow"}


@given(st.timedeltas(min_value=timedelta(seconds=10), max_value=timedelta(days=300)))
def test_a_duration_reads_back_as_it_is_shown(duration: timedelta) -> None:
    config = load("/dev/null", environ={}, overrides={"worker.timeout": format_duration(duration)})
    assert config.settings.worker.timeout == duration


@pytest.mark.parametrize("text", ["30", '"30"', "1.5"])
def test_a_duration_without_a_unit_is_refused_with_the_units(text: str) -> None:
    error = mistake(f"worker:\n  timeout: {text}\n")
    assert "no unit" in error.message
    assert "wrasse.yaml line 2: worker.timeout" in error.message
    assert "30s" in error.do or "1.5s" in error.do


# Each mistake of the design document's list, and the words only its own message has.
MISTAKES = [
    ("worker: {brpoplpush_timeout: 0s}", "worker.brpoplpush_timeout", "never end"),
    ("worker: {brpoplpush_timeout: 16s}", "worker.brpoplpush_timeout", "half of worker.heartbeat_ttl"),
    ("worker: {count: 0}", "worker.count", "without a slot"),
    ("worker: {priorities: []}", "worker.priorities", "is empty"),
    ("worker: {priorities: [high, urgent]}", "worker.queues", "'urgent'"),
    ("worker: {heartbeat_ttl: 4s}", "worker.heartbeat_ttl", "4s"),
    ("producer: {rate_limit_per_sec: -1}", "producer.rate_limit_per_sec", "is -1"),
    ("observability: {metrics_port: 70000}", "observability.metrics_port", "not a port"),
    ("circuit_breaker: {failure_threshold: 0}", "circuit_breaker.failure_threshold", "share"),
    ("circuit_breaker: {failure_threshold: 1.01}", "circuit_breaker.failure_threshold", "1.01"),
    ("circuit_breaker: {min_samples: 0}", "circuit_breaker.min_samples", "needs at least one result"),
    ("worker: {priorities: [high, high]}", "worker.priorities", "twice"),
    ("worker: {backoff: {base: 0s}}", "worker.backoff.base", "run at once"),
    ("worker: {backoff: {base: 20s}}", "worker.backoff.max", "shorter than worker.backoff.base"),
    ("worker: {max_retries: -1}", "worker.max_retries", "is -1"),
    ("worker: {handler: 'a:b', exec: 'true'}", "worker.exec", "together with worker.handler"),
    ("producer: {default_priority: nope}", "producer.default_priority", "no queue"),
    ("observability: {log_level: loud}", "observability.log_level", "'loud'"),
    ("http: {listen: 9341}", "http.listen", "not host:port"),
    ("http: {listen: '127.0.0.1:99999'}", "http.listen", "99999"),
    ("backends: {jobs: wrasse.db}", "backends.jobs", "not the URL"),
    ("backends: {jobs: 'sqlite://two.db'}", "backends.jobs", "two slashes"),
    ("backends: {jobs: 'sqllite:a.db'}", "backends.jobs", "'sqllite'"),
    ("backends: {records: 'gs://bucket'}", "backends.records", "no gs backend"),
    ("backends: {records: 's3://b'}", "backends.records", "not the name of a bucket"),
    ("backends: {jobs: 'nats://h:4222'}", "backends.jobs", "does not support jobs in nats"),
    ("backends: {jobs: 's3://bucket'}\nworker: {rates: {low: 1/s}}", "worker.rates", "have no limits"),
    ("engine: {lease: 1s}", "engine.lease", "slow run"),
    ("sweeps: {stuck_jobs: {interval: 0s}}", "sweeps.stuck_jobs.interval", "without a pause"),
    ("sweeps: {stuck_jobs: {jitter: 1}}", "sweeps.stuck_jobs.jitter", "share"),
    ("sweeps: {stuck_jobs: {batch_max: 0}}", "sweeps.stuck_jobs.batch_max", "is 0"),
    ("sweeps: {finished_jobs: {done_kept: 30}}", "sweeps.finished_jobs.done_kept", "no unit"),
    ("worker: {count: many}", "worker.count", "'many', not a whole number"),
    ("worker: {count: 1.5}", "worker.count", "whole number"),
    ("worker: {count: [1]}", "worker.count", "a list or a map"),
    ("worker: {count: }", "worker.count", "no value"),
    ("worker: {queues: [a]}", "worker.queues", "not a map"),
    ("worker: {priorities: high}", "worker.priorities", "not a list"),
    ("worker: {priorities: [[high]]}", "worker.priorities", "values that are not texts"),
    ("observability: {tracing: {enabled: maybe}}", "observability.tracing.enabled", "not a yes or no"),
    ("circuit_breaker: {failure_threshold: .nan}", "circuit_breaker.failure_threshold", "number"),
    ("worker: 5", "worker", "is a section"),
    ("worker: {count: 1}\nworker: {count: 2}", "worker", "twice"),
]


@pytest.mark.parametrize(("text", "path", "words"), MISTAKES, ids=[text for text, _, _ in MISTAKES])
def test_each_mistake_has_a_message_of_its_own_that_names_key_and_line(text: str, path: str, words: str) -> None:
    error = mistake(text)
    assert f": {path} " in error.message
    assert words in error.message
    assert "wrasse.yaml line" in error.message or "defaults" in error.message
    assert error.do


def test_no_two_rules_share_their_words() -> None:
    messages = [mistake(text).message.split(": ", 1)[1] for text, _, _ in MISTAKES]
    assert len(set(messages)) == len(messages)


def test_several_mistakes_are_told_at_once() -> None:
    error = mistake("worker: {count: 0, heartbeat_ttl: 1s}\nproducer: {rate_limit_per_sec: -3}")
    assert "4 mistakes" in error.message, error.message
    assert all(path in error.message for path in ("worker.count", "worker.heartbeat_ttl", "rate_limit_per_sec"))


def test_a_mistake_in_the_environment_names_the_variable() -> None:
    error = mistake("", {"WORKER_COUNT": "lots"})
    assert error.message.startswith("environment variable WORKER_COUNT: worker.count")


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("wroker: {count: 1}", "'worker'"),
        ("worker: {cuont: 1}", "'count'"),
        ("worker: {backoff: {bse: 1s}}", "'base'"),
        ("sweeps: {stuck_job: {}}", "'stuck_jobs'"),
        ("sweeps: {stuck_jobs: {heartbeat_timeuot: 30s}}", "'heartbeat_timeout'"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(text: str, near: str) -> None:
    error = mistake(text)
    assert near in error.do
    assert "wrasse.yaml line 1" in error.message


def test_an_unknown_setting_on_the_command_line_is_refused() -> None:
    with pytest.raises(UnknownName) as caught:
        loaded("", worker__coumt="1")
    assert "worker.count" in caught.value.do


def test_keys_of_other_programs_only_warn() -> None:
    config = loaded("exactly_once: {enabled: true}\nobservability: {tracing: {sampling_rate: 1}}\n")
    assert len(config.warnings) == 2
    assert "exactly_once" in config.warnings[0]
    assert "observability.tracing.sampling_rate" in config.warnings[1]


def test_a_near_miss_in_the_environment_is_a_mistake_and_a_stranger_is_not() -> None:
    assert mistake("", {"WRASSE_WORKER_COUMT": "1"}).do == "write WRASSE_WORKER_COUNT"
    assert "WRASSE_COLOUR" in loaded("", {"WRASSE_COLOUR": "blue"}).warnings[0]


@pytest.mark.parametrize("name", ["WRASSE_CONFIG_FILE", "WRASSE_QUEUES", "WRASSE_JOB_BACKEND", "WRASSE_TOKENS"])
def test_a_variable_that_only_begins_like_one_of_ours_is_told(name: str) -> None:
    assert loaded("", {name: "x"}).warnings == (f"the environment variable {name} is not a setting and is ignored",)


def test_what_kubernetes_injects_for_a_service_of_our_name_is_no_setting() -> None:
    injected = {
        "WRASSE_SERVICE_HOST": "10.0.0.1",
        "WRASSE_WORKER_PORT": "tcp://10.0.0.1:80",
        "WRASSE_PORT_9341_TCP_ADDR": "10.0.0.1",
        "WRASSE_WORKER_SERVICE_PORT_HTTP": "80",
        "REDIS_PORT": "tcp://10.0.0.1:6379",
    }
    assert loaded("", injected).warnings == ()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"worker: [unclosed", "wrasse.yaml line"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"- a\n- b\n", "not a map"),
        (b"a: b: c", "not YAML"),
        (b"\tworker: 1", "not YAML"),
        (b"--- {}\n--- {}\n", "not YAML"),
    ],
)
def test_a_file_that_is_no_map_of_yaml_is_one_clear_error(data: bytes, words: str) -> None:
    Path("wrasse.yaml").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load(environ={})
    assert words in caught.value.message
    assert caught.value.do


def test_a_file_that_cannot_be_read_is_an_error_and_not_a_default() -> None:
    Path("wrasse.yaml").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load(environ={})


def test_a_merge_key_brings_in_another_map() -> None:
    text = "worker: &w {count: 3}\nproducer: {default_priority: low}\nsweeps: {stuck_jobs: {<<: {interval: 5s}}}\n"
    config = loaded(text)
    assert config.settings.sweeps["stuck_jobs"].interval == timedelta(seconds=5)


def test_a_sweeps_fields_are_settings() -> None:
    config = loaded("sweeps: {finished_jobs: {done_kept: 2h, interval: 5m, enabled: false}}")
    finished = config.settings.sweeps["finished_jobs"]
    assert (finished.fields["done_kept"], finished.interval, finished.enabled) == (
        timedelta(hours=2),
        timedelta(minutes=5),
        False,
    )


def test_stuck_jobs_follows_the_worker_unless_it_is_told_otherwise() -> None:
    followed = loaded("worker: {heartbeat_ttl: 1m, rescues_max: 7}").settings.sweeps["stuck_jobs"].fields
    assert (followed["heartbeat_timeout"], followed["rescues_max"]) == (timedelta(minutes=1), 7)
    told = loaded("worker: {heartbeat_ttl: 1m}\nsweeps: {stuck_jobs: {heartbeat_timeout: 2m}}").settings.sweeps[
        "stuck_jobs"
    ]
    assert told.fields["heartbeat_timeout"] == timedelta(minutes=2)


def test_what_does_less_than_it_seems_to_say_is_told() -> None:
    config = loaded("worker: {completed_list: x}\nsweeps: {stuck_jobs: {heartbeat_timeout: 10s}}")
    unused, shorter = config.warnings
    assert unused == "only jobs on Redis use worker.completed_list, and jobs are elsewhere"
    assert "shorter than worker.heartbeat_ttl" in shorter


def test_secrets_are_neither_shown_nor_told_in_errors() -> None:
    secret = "s3cr3t-value"
    config = loaded(f"redis: {{password: {secret}}}\nobservability: {{tracing: {{endpoint: 'http://u:{secret}@h'}}}}")
    texts = [f"{each.leaf.path}: {written(each.value)} {each.source}" for each in shown(config)]
    assert "redis.password: ********" in "\n".join(texts).replace('"', "")
    assert secret not in "\n".join(texts)
    assert secret not in str(mistake(f"redis: {{password: [{secret}]}}"))
    assert secret not in str(mistake(f"backends: {{jobs: 'redis://u:{secret}@host/none'}}"))
    assert secret not in str(mistake(f"backends: {{jobs: '//u:{secret}@host/0'}}"))
    assert secret not in str(mistake(f"backends: {{jobs: 'u:a@{secret}@host'}}"))
    assert secret not in str(mistake("", {"REDIS_PASSWORD": secret, "REDIS_DB": "x"}))


def test_redis_settings_beside_a_named_home_for_jobs_are_a_conflict() -> None:
    assert "keep one" in mistake("redis: {db: 1}\nbackends: {jobs: 'sqlite:a.db'}").do


def test_the_engine_keeps_its_state_where_the_first_named_home_is() -> None:
    named = {
        "": "sqlite:wrasse.db",
        "backends: {jobs: 'sqlite:j.db'}": "sqlite:j.db",
        "backends: {jobs: 'sqlite:j.db', records: 'sqlite:r.db'}": "sqlite:r.db",
        "backends: {records: 'sqlite:r.db'}\nengine: {backend: 'sqlite:e.db'}": "sqlite:e.db",
    }
    assert {text: loaded(text).homes.engine for text in named} == named


def test_what_is_shown_loads_again_to_the_same_settings() -> None:
    first = loaded("worker: {priorities: [high, low], queues: {high: 'a b', low: ''''}}".replace("''''", "x"))
    again = {each.leaf.path: each for each in shown(first) if each.value or not each.leaf.key.filled}
    overrides = {path: written(each.value) for path, each in again.items() if isinstance(each.value, list | Mapping)}
    overrides |= {path: str(each.value) for path, each in again.items() if isinstance(each.value, str | int | float)}
    overrides = {path: text for path, text in overrides.items() if not path.startswith(("redis.", "backends."))}
    assert load("/dev/null", environ={}, overrides=overrides).settings == first.settings


def test_periodic_jobs_are_read_with_data_of_any_shape() -> None:
    text = 'periodic:\n  nightly: {cron: "0 3 * * *", tz: Europe/Berlin, data: {days: [1, 2]}, missed: skip}\n'
    own = loaded(text + "  beat: {every: 5m, kind: ping, priority: high}\n").settings.periodic
    assert (own["nightly"].data, own["nightly"].missed) == ({"days": [1, 2]}, "skip")
    assert (own["beat"].every, own["beat"].kind) == (timedelta(minutes=5), "ping")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("periodic: {a: {}}", "neither cron nor every"),
        ('periodic: {a: {cron: "0 3 * * *", every: 5m}}', "both cron and every"),
        ('periodic: {a: {cron: "0 25 * * *"}}', "has a bad hour"),
        ("periodic: {a: {every: 5m, tz: Europe/Berlin}}", "every and a time zone"),
        ("periodic: {a: {every: 5m, priority: urgent}}", "priority 'urgent'"),
        ("periodic: {a: {every: 5m, missed: some}}", "whose missed is 'some'"),
        ("periodic: {a: {evry: 5m}}", "write 'every'"),
        ("periodic: [a]", "is not a map"),
        ("worker: {weights: {middle: 1}}", "not in worker.priorities"),
        ("worker: {weights: {high: 0}}", "'0' is no weight"),
        ("worker: {rates: {mail: 1/s}}", "not a queue in worker.queues"),
        ("worker: {rates: {high: fast}}", "'fast' is no limit"),
    ],
)
def test_mistakes_in_periodic_jobs_weights_and_limits_are_told(text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        loaded(text)


@pytest.mark.parametrize(
    "server",
    ["http://", "http://h:99999", "http://[::1", "http://h/base", "http://h/?a=b", "http://u:p@h", "http:/h", "ftp://h",
     "http://h h", "h:9342"],
)  # fmt: skip
def test_a_lease_server_is_named_so_that_it_can_be_called(server: str, tmp_path: Path) -> None:
    file = tmp_path / "wrasse.yaml"
    file.write_text(f"leases: {{server: '{server}'}}\n")
    with pytest.raises(ConfigError, match="not the URL of a lease API"):
        load(file, environ={})


@pytest.mark.parametrize("server", ["http://h:9342", "https://h/", "HTTPS://h", "http://[::1]:9342"])
def test_a_lease_server_may_be_spelled_in_these_ways(server: str, tmp_path: Path) -> None:
    file = tmp_path / "wrasse.yaml"
    file.write_text(f"leases: {{server: '{server}'}}\n")
    assert load(file, environ={}).settings.leases.server == server
