"""Every setting: its name, type, default and meaning, as frozen structs. The reference page is generated from them.

The nesting is that of the YAML file: `Settings.worker.backoff.base` is `worker.backoff.base` there, and
`WRASSE_WORKER_BACKOFF_BASE` in the environment. Names and defaults that a design document fixes have `seed=True`; those
also have their bare environment name (`WORKER_BACKOFF_BASE`). The settings of a sweep are the fields of its class, see
`config/schema.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from wrasse.backends.nats.options import STORAGES, NatsOptions
from wrasse.config.lease_settings import LeaseSettings
from wrasse.config.orphans import ROOT_KEYS, OrphanRoot, OrphanSeed
from wrasse.config.setting_key import setting
from wrasse.errors import ConfigError
from wrasse.jobs.new_job import encoded
from wrasse.jobs.periodic import Every, Missed, Periodic, parse_cron

TYPE_KEYS = "workers, step_timeout, max_retries"
STREAM_SWEEPS = ("aged_entries", "dead_consumers")  # which follow sweeper.interval unless set
RETENTION_KEYS = "age, exact, protect, allow_data_loss"
EMBEDDED = "sqlite:wrasse.db"
EMBEDDED_OBJECTS = "file:wrasse-data"


CODECS = ("gzip", "zstd", "none")
LAYOUTS = ("slashes", "hive")
ARCHIVE_KEYS = (
    "stream, destination, bucket, batch_size, batch_timeout, batch_bytes, compression, layout, prefix, domain, "
    "archive_best_effort"
)


@dataclass(frozen=True, slots=True)
class ArchiveStream:
    """One pattern of streams to archive, with the names of the archiver's design document."""

    stream: str = setting("", "subject or pattern of the streams", seed=True)
    destination: str = setting(
        "", "s3 with a bucket, or the URL of a store; without it: backends.objects", seed=True, filled=True
    )
    bucket: str = setting("", "bucket of the destination s3", seed=True, filled=True)
    batch_size: int = setting(1_000, "maximum messages per archive", seed=True)
    batch_timeout: timedelta = setting(
        timedelta(seconds=60), "maximum age of a message before it is archived", seed=True
    )
    batch_bytes: int = setting(16 << 20, "maximum bytes of lines per archive")
    format: str = setting("jsonl", "format of an archive", seed=True, choices=("jsonl",))
    compression: str = setting("gzip", "how it is compressed", seed=True, choices=CODECS)
    partition: str = setting("daily", "which archives share a directory", seed=True, choices=("daily",))
    layout: str = setting("slashes", "the day in a key: slashes is 2026/02/14, hive is dt=2026-02-14", choices=LAYOUTS)
    prefix: str = setting("archive", "prefix of every key")
    domain: str = setting("", "the part after the prefix; empty: from the subject")
    archive_best_effort: bool = setting(
        False, "archive work queues of NATS, too: labelled incomplete, outside guarantee G6"
    )


@dataclass(frozen=True, slots=True)
class LagThreshold:
    """The lag of one stream beyond which an alert is sent."""

    messages: int = setting(10_000, "messages of one stream that are not archived yet")
    age: timedelta = setting(timedelta(hours=1), "age of the oldest of them")


@dataclass(frozen=True, slots=True)
class ArchiverSettings:
    """The archiver, which copies streams into archives."""

    streams: tuple[ArchiveStream, ...] = setting((), f"the streams to archive, a list of maps with {ARCHIVE_KEYS}")
    lag_threshold: LagThreshold = field(default_factory=LagThreshold)
    lag_repeat: timedelta = setting(timedelta(hours=1), "how often an alert about the same lag is repeated")


@dataclass(frozen=True, slots=True)
class NatsTls:
    """TLS for connections to NATS."""

    ca: str = setting("", "file of the trusted authorities; empty: the system's")
    cert: str = setting("", "file of the client certificate, if the server requires one")
    key: str = setting("", "file of its key")
    verify: bool = setting(True, "whether the server's certificate is checked")
    first: bool = setting(False, "whether the server expects TLS from the first byte on (handshake_first)")


@dataclass(frozen=True, slots=True)
class NatsSettings:
    """Options that complete the URL of a NATS in backends.streams or backends.records."""

    username: str = setting("", "user to log in as")
    password: str = setting("", "password to log in with", secret=True)
    token: str = setting("", "token to log in with", secret=True)
    creds: str = setting("", "file with the JWT and the seed of a user, as nsc writes it")
    nkey: str = setting("", "file with the seed of a user's key")
    name: str = setting("wrasse", "name of the connections")
    domain: str = setting("", "domain of JetStream, where it is behind a leaf node")
    root: str = setting(NatsOptions().root, "name of the KV bucket, and prefix of the streams")
    storage: str = setting("file", "storage of created streams and buckets", choices=STORAGES)
    replicas: int = setting(1, "replicas of created streams and buckets in a cluster: 1, 3 or 5")
    dial_timeout: timedelta = setting(timedelta(seconds=5), "how long connecting may take")
    read_timeout: timedelta = setting(timedelta(seconds=5), "how long an answer may take")
    ping_interval: timedelta = setting(timedelta(seconds=20), "how often an idle server is pinged")
    tls: NatsTls = field(default_factory=NatsTls)


@dataclass(frozen=True, slots=True)
class TaskTypeSettings:
    """One type of stream tasks."""

    workers: int = setting(4, "concurrent tasks per process", seed=True)
    step_timeout: timedelta = setting(
        timedelta(0), "heartbeat timeout of a task; 0: sweeper.stuck_threshold", seed=True
    )
    max_retries: int = setting(3, "retries of a task, whether it failed or was stuck: 3 means 4 runs", seed=True)


@dataclass(frozen=True, slots=True)
class StuckTasksSettings:
    """The search for stuck tasks, with the design document's names."""

    interval: timedelta = setting(timedelta(seconds=30), "how often stuck tasks are searched for")
    lock_ttl: timedelta = setting(
        timedelta(seconds=60), "on Redis: how long the key gbe:lock:sweeper lasts without renewal"
    )
    stuck_threshold: timedelta = setting(timedelta(seconds=300), "default heartbeat timeout of tasks")


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How long the entries of streams that match one pattern are kept. A single duration is the age."""

    short: ClassVar[str] = "age"

    age: timedelta = setting(timedelta(0), "maximum age of entries", seed=True)
    exact: bool = setting(False, "whether they are trimmed at that age, and not a hundredth of it later")
    protect: tuple[str, ...] = setting((), "groups that must have acked trimmed entries, besides the default ones")
    allow_data_loss: bool = setting(False, "whether entries are trimmed that protecting groups have not acked")


@dataclass(frozen=True, slots=True)
class Backends:
    """Backends: a URL per port. A port that is not named follows named ones, or is embedded."""

    jobs: str = setting(
        "",
        "backend of jobs: sqlite:wrasse.db, sqlite:///absolute/path, redis://host:6379/0, memory:, or a bucket or "
        "directory: s3://bucket/prefix, file:wrasse-data; without it: see Where things live",
        filled=True,
    )
    records: str = setting(
        "",
        "backend of leases and other small records: the same forms, nats://host:4222, s3://bucket/prefix or "
        "file:wrasse-data; without it: see Where things live",
        filled=True,
    )
    streams: str = setting(
        "",
        "backend of streams of messages: as jobs, with Redis 7.0 or newer; or nats://host:4222; without it: see "
        "Where things live",
        filled=True,
    )
    objects: str = setting(
        "",
        "backend of archives and the state of leases: file:wrasse-data, file:///absolute/path, s3://bucket/prefix "
        "or memory:; without it: see Where things live",
        filled=True,
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings that all sweeps share."""

    backend: str = setting(
        "",
        "backend of leases of sweeps, cursors, reports and the journal; without it: the first server that is "
        "named for records, jobs or streams",
        filled=True,
    )
    journal_kept: timedelta = setting(timedelta(days=90), "how long settled journal lines are kept")
    lease: timedelta = setting(timedelta(seconds=10), "how long the lease of a running sweep lasts without renewal")
    skew_max: timedelta = setting(
        timedelta(seconds=5), "difference between this machine's clock and the backend's at which sweeps pause"
    )


@dataclass(frozen=True, slots=True)
class Http:
    """The status page, metrics and probes."""

    listen: str = setting(
        "127.0.0.1:9341",
        "address of status page, metrics and probes; beyond loopback only metrics and probes are served; empty: none",
    )
    metrics_listen: str = setting("", "a second address, only for metrics and probes; empty: none")


@dataclass(frozen=True, slots=True)
class RedisTls:
    """TLS for connections to Redis."""

    enabled: bool = setting(False, "whether the connection is encrypted")
    ca: str = setting("", "file of the trusted authorities; empty: the system's")
    cert: str = setting("", "file of the client certificate, if the server requires one")
    key: str = setting("", "file of its key")
    verify: bool = setting(True, "whether the server's certificate is checked")


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """The connection to Redis, with the names of the job queue's design document. Any of it in a file, or redis.addr
    anywhere, names Redis for jobs, records and streams, unless backends: names another backend for one of them."""

    addr: str = setting(
        "localhost:6379", "host:port; several with commas: nodes of a cluster, or sentinels", seed=True, filled=True
    )
    username: str = setting("", "user to log in as", seed=True)
    password: str = setting("", "password to log in with", seed=True, secret=True)
    db: int = setting(0, "database number", seed=True)
    pool_size_multiplier: int = setting(10, "maximum connections per processor", seed=True)
    min_idle_conns: int = setting(5, "idle connections that are kept open", seed=True)
    dial_timeout: timedelta = setting(timedelta(seconds=5), "how long connecting may take", seed=True)
    read_timeout: timedelta = setting(timedelta(seconds=3), "how long an answer may take", seed=True)
    write_timeout: timedelta = setting(timedelta(seconds=3), "how long sending may take", seed=True)
    max_retries: int = setting(3, "retries of connecting and reading", seed=True)
    reply_bytes_max: int = setting(268_435_456, "maximum bytes of one reply, with 128 more for each of its elements")
    client: str = setting(
        "own", "own, redis-py, or module:callable that returns a redis.asyncio.Redis (extra redis-py)"
    )
    credential_provider: str = setting(
        "", "module:callable that returns a credential provider of redis-py, such as for IAM or Entra ID"
    )
    cluster: bool = setting(False, "whether it is a cluster; all keys of a root then share one slot")
    sentinel: str = setting("", "the master's name, if redis.addr names sentinels")
    sentinel_username: str = setting("", "user to log in as at the sentinels")
    sentinel_password: str = setting("", "password to log in with at the sentinels", secret=True)
    root: str = setting("jobqueue", "prefix of every key")
    tls: RedisTls = field(default_factory=RedisTls)


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay before a failed job runs again: base x 2^(failures - 1), at most max."""

    base: timedelta = setting(timedelta(seconds=0.5), "delay after the first failure", seed=True)
    max: timedelta = setting(timedelta(seconds=10), "maximum delay", seed=True)


@dataclass(frozen=True, slots=True)
class HttpHandlers:
    """Handlers that are URLs, to which jobs are posted."""

    refused: str = setting(
        "dead_letter",
        "outcome of a job that is answered with 4xx: dead_letter makes it dead at once, fail retries it",
        choices=("dead_letter", "fail"),
    )
    authorization: str = setting(
        "", "value of the header Authorization, such as 'Bearer …', sent to all of them", secret=True
    )
    insecure: bool = setting(False, "whether it may be sent beyond this machine without TLS, readable on the network")
    connect_timeout: timedelta = setting(timedelta(seconds=10), "how long connecting may take")


@dataclass(frozen=True, slots=True)
class WorkerSection:
    """The worker, which claims jobs and runs their handlers."""

    count: int = setting(16, "concurrent jobs per process", seed=True)
    heartbeat_ttl: timedelta = setting(
        timedelta(seconds=30), "heartbeat timeout after which a worker's jobs are rescued", seed=True
    )
    max_retries: int = setting(3, "retries of a failed job: 3 means 4 runs", seed=True)
    backoff: Backoff = field(default_factory=Backoff)
    priorities: tuple[str, ...] = setting(("high", "low"), "the order in which queues are served", seed=True)
    queues: Mapping[str, str] = setting(
        {"high": "high", "low": "low"},
        "the queue of each priority; on Redis jobqueue:high_priority and jobqueue:low_priority, and a name with a "
        "colon is the key of its list",
        seed=True,
    )
    weights: Mapping[str, str] = setting({}, "shares of the priorities, such as {high: 6, low: 3}; empty: strict order")
    rates: Mapping[str, str] = setting(
        {}, "rate limits of queues, such as {mail: 10/s, report: 100/h}, for all workers with this setting together"
    )
    processing_list_pattern: str = setting(
        "jobqueue:worker:%s:processing", "Redis list of a worker's jobs; %s is the worker", seed=True
    )
    heartbeat_key_pattern: str = setting(
        "jobqueue:processing:worker:%s", "Redis key of a worker's heartbeat; %s is the worker", seed=True
    )
    completed_list: str = setting("jobqueue:completed", "Redis list of done jobs", seed=True)
    dead_letter_list: str = setting("jobqueue:dead_letter", "Redis list of dead jobs", seed=True)
    brpoplpush_timeout: timedelta = setting(timedelta(seconds=1), "maximum duration of one wait for a job", seed=True)
    breaker_pause: timedelta = setting(
        timedelta(seconds=0.1), "pause of a worker while the breakers of all its queues are open", seed=True
    )
    rescues_max: int = setting(3, "how many workers a job may lose before it is dead-lettered")
    timeout: timedelta = setting(timedelta(hours=1), "maximum duration of a handler, unless its job sets another")
    grace: timedelta = setting(timedelta(seconds=30), "how long running handlers may finish after SIGTERM")
    done_max: int = setting(10_000, "how many done jobs are kept; 0: none")
    result_kept: timedelta = setting(
        timedelta(0),
        "how long at least a done job is kept, with its result, unless its enqueue sets another; 0: as long as "
        "done_max and the sweep finished_jobs keep it",
    )
    handlers: Mapping[str, str] = setting(
        {}, "handler of each kind, as module:name or as a URL to which its jobs are posted"
    )
    handler: str = setting("", "handler of every other kind, as module:name or as a URL")
    http: HttpHandlers = field(default_factory=HttpHandlers)
    exec: str = setting("", "command that handles every other kind, e.g. 'convert {filepath}'")
    exec_env: tuple[str, ...] = setting(
        (), "environment variables for commands besides PATH, HOME, LANG and similar; AWS_* for a family"
    )


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The producer, which turns files into jobs."""

    scan_dir: str = setting("./data", "directory whose files are enqueued", seed=True)
    include_globs: tuple[str, ...] = setting(
        ("**/*",), "files to enqueue, by their path below scan_dir; empty: all", seed=True
    )
    exclude_globs: tuple[str, ...] = setting(
        ("**/*.tmp", "**/.DS_Store"), "files to exclude, with precedence over include_globs", seed=True
    )
    default_priority: str = setting("low", "priority of a job that names none", seed=True)
    high_priority_exts: tuple[str, ...] = setting(
        (".pdf", ".docx", ".xlsx", ".zip"), "extensions of files with the priority high, in any case", seed=True
    )
    rate_limit_per_sec: int = setting(
        100, "maximum new jobs per second of all producers together; 0: no limit", seed=True
    )
    rate_limit_key: str = setting(
        "jobqueue:rate_limit:producer", "name, and on Redis the key, under which the limit is counted", seed=True
    )
    kind: str = setting("", "kind of a file's job, which selects the handler; empty: the default handler")
    watch: str = setting(
        "auto", "how --watch detects changes: auto, or poll for network file systems", choices=("auto", "poll")
    )
    settle: timedelta = setting(
        timedelta(seconds=2), "with --watch: how long a file must be unchanged if its closing is not reported"
    )
    poll_interval: timedelta = setting(
        timedelta(seconds=2), "with --watch: pause between two scans if changes are not reported"
    )


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """When a queue whose jobs keep failing is paused: one breaker per queue and process."""

    failure_threshold: float = setting(0.5, "share of failures that opens it", seed=True)
    window: timedelta = setting(timedelta(seconds=60), "period over which results are counted", seed=True)
    cooldown_period: timedelta = setting(timedelta(seconds=30), "how long it stays open", seed=True)
    min_samples: int = setting(20, "results needed before it may open", seed=True)
    unready_after: timedelta = setting(
        timedelta(minutes=2), "how long it may pause its queue before /readyz reports the process as not ready"
    )


@dataclass(frozen=True, slots=True)
class Tracing:
    """The destination of spans."""

    enabled: bool = setting(False, "whether spans are sent; needs the extra otel", seed=True)
    endpoint: str = setting(
        "", "OTLP/HTTP address, such as http://localhost:4318; empty: from OTEL_… variables", seed=True
    )


@dataclass(frozen=True, slots=True)
class Observability:
    """Logs and metrics."""

    metrics_port: int = setting(
        9090, "one more port for metrics and probes, on loopback; open only if it is set", seed=True
    )
    log_level: str = setting(
        "info", "minimum level that is logged", seed=True, choices=("debug", "info", "warn", "error")
    )
    queue_sample_interval: timedelta = setting(
        timedelta(seconds=2), "maximum age of the queue numbers in metrics", seed=True
    )
    tracing: Tracing = field(default_factory=Tracing)


@dataclass(frozen=True, slots=True)
class PeriodicSettings:
    """One job that is enqueued periodically."""

    kind: str = setting("", "its kind, which selects the handler; empty: the name of the periodic job")
    cron: str = setting("", "schedule, as minute hour day-of-month month day-of-week")
    every: timedelta | None = setting(None, "or the interval")
    tz: str = setting("UTC", "time zone of the cron expression")
    data: object = setting(None, "its payload, written as JSON")
    priority: str = setting("", "empty: producer.default_priority")
    missed: str = setting("once", "what happens to slots that were missed", choices=("skip", "once", "all"))

    def as_periodic(self, name: str) -> Periodic:
        """The periodic job of this name; ConfigError if these settings are not one."""
        if bool(self.cron) == (self.every is not None):
            raise ConfigError(
                f"the periodic job {name!r} has {'both cron and every' if self.cron else 'neither cron nor every'}",
                do='write one of them, such as cron: "0 3 * * *" or every: 5m',
            )
        if self.every is not None and self.tz != "UTC":
            raise ConfigError(f"the periodic job {name!r} has every and a time zone", do="tz goes with cron")
        schedule = Every(self.every) if self.every is not None else parse_cron(self.cron, self.tz)
        return Periodic(
            name, schedule, self.kind or name, encoded(self.data), self.priority or None, Missed(self.missed)
        )


@dataclass(frozen=True, slots=True)
class ReaperSettings:
    """The search for jobs on Redis that a worker of another program left behind, with the design document's names. All
    others are found by their deadline."""

    interval: timedelta = setting(
        timedelta(seconds=10), "how often; the same as sweeps.stuck_jobs.interval, which has precedence"
    )
    jitter: float = setting(0.25, "share of the interval by which a run may be early or late; likewise")
    scan_count: int = setting(100, "names per page")
    pass_budget: timedelta = setting(
        timedelta(milliseconds=200), "maximum duration of one search; the next continues from there"
    )
    page_delay: timedelta = setting(timedelta(milliseconds=10), "pause between two pages")
    page_jitter: float = setting(0.5, "share by which that pause may be shorter or longer")


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """When one sweep runs, and the budget of a run; `fields` are the settings of its class."""

    use: str = setting("", "the class of your own sweep, as module:Class")
    enabled: bool = setting(True, "whether it runs periodically")
    interval: timedelta = setting(timedelta(seconds=60), "how often it runs")
    jitter: float = setting(0.1, "share of the interval by which a run may be early or late")
    actions_max: int = setting(1_000, "maximum actions of one run")
    runtime_max: timedelta = setting(timedelta(seconds=30), "maximum duration of one run")
    pause: timedelta = setting(timedelta(0), "pause between two batches")
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration."""

    backends: Backends = field(default_factory=Backends)
    engine: EngineSettings = field(default_factory=EngineSettings)
    http: Http = field(default_factory=Http)
    redis: RedisSettings = field(default_factory=RedisSettings)
    nats: NatsSettings = field(default_factory=NatsSettings)
    worker: WorkerSection = field(default_factory=WorkerSection)
    producer: ProducerSettings = field(default_factory=ProducerSettings)
    circuit_breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    observability: Observability = field(default_factory=Observability)
    reaper: ReaperSettings = field(default_factory=ReaperSettings)
    archiver: ArchiverSettings = field(default_factory=ArchiverSettings)
    archival: tuple[ArchiveStream, ...] = setting((), "another place for the entries of archiver.streams; both count")
    periodic: Mapping[str, PeriodicSettings] = setting(
        {}, "periodic jobs: a map from a name to kind, cron or every, tz, data, priority, missed"
    )
    orphans: Mapping[str, OrphanRoot] = setting(
        {}, f"where orphans are searched for: a map from a name to {ROOT_KEYS} and more"
    )
    gc: OrphanSeed = field(default_factory=OrphanSeed)
    leases: LeaseSettings = field(default_factory=LeaseSettings)
    retention: Mapping[str, RetentionSettings] = setting(
        {},
        "how long streams keep their entries: a map from a subject or pattern to a duration, or to "
        f"{RETENTION_KEYS}; a stream without a rule is never trimmed",
    )
    task_types: Mapping[str, TaskTypeSettings] = setting({}, f"the types of tasks: a map from a type to {TYPE_KEYS}")
    sweeper: StuckTasksSettings = field(default_factory=StuckTasksSettings)
    sweeps: Mapping[str, SweepSettings] = field(default_factory=dict)
