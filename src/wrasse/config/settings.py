"""Every setting: its name, type, default and meaning, as frozen structs. The reference page is written from here.

The nesting is that of the YAML file: `Settings.worker.backoff.base` is `worker.backoff.base` there, and
`WRASSE_WORKER_BACKOFF_BASE` in the environment. Names and defaults that a design document fixes carry `seed=True`;
those also have their bare environment name (`WORKER_BACKOFF_BASE`). The settings of a sweep are the fields of its
class, see `config/schema.py`.
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

TYPE_KEYS = "workers, step_timeout, max_retries"
STREAM_SWEEPS = ("aged_entries", "dead_consumers")  # which follow sweeper.interval unless told
RETENTION_KEYS = "age, exact, protect, allow_data_loss"
EMBEDDED = "sqlite:wrasse.db"
EMBEDDED_OBJECTS = "file:wrasse-data"


CODECS = ("gzip", "zstd", "none")
LAYOUTS = ("slashes", "hive")


@dataclass(frozen=True, slots=True)
class ArchiveStream:
    """One pattern of streams to archive, as the archiver's design document writes it."""

    stream: str = setting("", "subject or pattern of the streams", seed=True)
    destination: str = setting(
        "", "s3 with a bucket, or the URL of a store; without it: backends.objects", seed=True, filled=True
    )
    bucket: str = setting("", "bucket of the destination s3", seed=True, filled=True)
    batch_size: int = setting(1_000, "messages in one archive at most", seed=True)
    batch_timeout: timedelta = setting(
        timedelta(seconds=60), "how old a message may get before it is archived", seed=True
    )
    batch_bytes: int = setting(16 << 20, "bytes of lines in one archive at most")
    format: str = setting("jsonl", "what an archive holds", seed=True, choices=("jsonl",))
    compression: str = setting("gzip", "how it is compressed", seed=True, choices=CODECS)
    partition: str = setting("daily", "which archives share a directory", seed=True, choices=("daily",))
    layout: str = setting("slashes", "the day in a key: slashes is 2026/02/14, hive is dt=2026-02-14", choices=LAYOUTS)
    prefix: str = setting("archive", "what every key begins with")
    domain: str = setting("", "the part after the prefix; empty: from the subject")
    archive_best_effort: bool = setting(
        False, "archive work queues of NATS, too: incomplete, and labelled so, outside guarantee G6"
    )


ARCHIVE_KEYS = (
    "stream, destination, bucket, batch_size, batch_timeout, batch_bytes, compression, layout, prefix, domain, "
    "archive_best_effort"
)


@dataclass(frozen=True, slots=True)
class LagThreshold:
    """Beyond which lag of one stream an alert goes out."""

    messages: int = setting(10_000, "messages of one stream that wait to be archived")
    age: timedelta = setting(timedelta(hours=1), "how old the oldest of them is")


@dataclass(frozen=True, slots=True)
class ArchiverSettings:
    """What copies streams into archives."""

    streams: tuple[ArchiveStream, ...] = setting((), f"what is archived where, a list of maps with {ARCHIVE_KEYS}")
    lag_threshold: LagThreshold = field(default_factory=LagThreshold)
    lag_repeat: timedelta = setting(timedelta(hours=1), "how often an alert about the same lag goes out again")


@dataclass(frozen=True, slots=True)
class NatsTls:
    """Encryption on the way to NATS."""

    ca: str = setting("", "file of the authorities that are trusted; empty: the system's")
    cert: str = setting("", "file of our own certificate, where the server asks for one")
    key: str = setting("", "file of its key")
    verify: bool = setting(True, "whether the server's certificate is checked")
    first: bool = setting(False, "whether the server expects TLS from the first byte on (handshake_first)")


@dataclass(frozen=True, slots=True)
class NatsSettings:
    """What the URL of a NATS in backends.streams or backends.records leaves open."""

    username: str = setting("", "user to log in as")
    password: str = setting("", "password to log in with", secret=True)
    token: str = setting("", "token to log in with", secret=True)
    creds: str = setting("", "file with the JWT and the seed of a user, as nsc writes it")
    nkey: str = setting("", "file with the seed of a user's key")
    name: str = setting("wrasse", "what the server calls our connections")
    domain: str = setting("", "domain of JetStream, where it is behind a leaf node")
    root: str = setting(NatsOptions().root, "name of our bucket, and what our streams begin with")
    storage: str = setting("file", "where what we make is stored", choices=STORAGES)
    replicas: int = setting(1, "how many copies a cluster keeps of what we make: 1, 3 or 5")
    dial_timeout: timedelta = setting(timedelta(seconds=5), "how long connecting may take")
    read_timeout: timedelta = setting(timedelta(seconds=5), "how long an answer may take")
    ping_interval: timedelta = setting(timedelta(seconds=20), "how often a quiet server is asked whether it is there")
    tls: NatsTls = field(default_factory=NatsTls)


@dataclass(frozen=True, slots=True)
class TaskTypeSettings:
    """One type of tasks."""

    workers: int = setting(4, "how many of its tasks one process runs at once", seed=True)
    step_timeout: timedelta = setting(
        timedelta(0),
        "how long a task may go without a sign of life; 0: as long as sweeper.stuck_threshold says",
        seed=True,
    )
    max_retries: int = setting(
        3, "how often a task is tried again, whether it failed or was stuck: 3 means 4 runs", seed=True
    )


@dataclass(frozen=True, slots=True)
class StuckTasksSettings:
    """How stuck tasks are looked for, in the design document's words."""

    interval: timedelta = setting(timedelta(seconds=30), "how often stuck tasks are looked for")
    lock_ttl: timedelta = setting(
        timedelta(seconds=60), "on Redis: how long the key gbe:lock:sweeper lasts without renewal"
    )
    stuck_threshold: timedelta = setting(
        timedelta(seconds=300), "how long a task of a type that says nothing else may go without a sign of life"
    )


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How long the entries of the streams are kept that one pattern matches. A duration alone is its age."""

    short: ClassVar[str] = "age"

    age: timedelta = setting(timedelta(0), "how old entries may get", seed=True)
    exact: bool = setting(False, "whether they go at that age, and not a hundredth of it later")
    protect: tuple[str, ...] = setting((), "groups that must have acked what goes, besides those that always must")
    allow_data_loss: bool = setting(False, "whether entries go that no protecting group has acked")


@dataclass(frozen=True, slots=True)
class Backends:
    """Where things are kept: a URL per port. A port that is not named follows those that are, or is embedded."""

    jobs: str = setting(
        "",
        "where jobs live: sqlite:wrasse.db, sqlite:///absolute/path, redis://host:6379/0, memory:, or a bucket or "
        "directory: s3://bucket/prefix, file:wrasse-data; without it: see Where things live",
        filled=True,
    )
    records: str = setting(
        "",
        "where leases and other small records live, the same forms, nats://host:4222, s3://bucket/prefix or "
        "file:wrasse-data; without it: see Where things live",
        filled=True,
    )
    streams: str = setting(
        "",
        "where streams of messages live, as jobs do, Redis 7.0 or newer; or nats://host:4222; without it: see "
        "Where things live",
        filled=True,
    )
    objects: str = setting(
        "",
        "where archives and the state of leases live: file:wrasse-data, file:///absolute/path, s3://bucket/prefix "
        "or memory:; without it: see Where things live",
        filled=True,
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What all sweeps share."""

    backend: str = setting(
        "",
        "where leases of sweeps, cursors, reports and the journal live; without it: the first server that is "
        "named for records, jobs or streams",
        filled=True,
    )
    journal_kept: timedelta = setting(timedelta(days=90), "how long settled journal lines are kept")
    lease: timedelta = setting(timedelta(seconds=10), "how long the lease of a running sweep lasts without renewal")
    skew_max: timedelta = setting(
        timedelta(seconds=5), "how far this machine's clock may be from the backend's before sweeps hold"
    )


@dataclass(frozen=True, slots=True)
class Http:
    """The status page, metrics and probes."""

    listen: str = setting(
        "127.0.0.1:9341",
        "address of status page, metrics and probes; beyond loopback only metrics and probes are served; empty: none",
    )
    metrics_listen: str = setting("", "a second address, for metrics and probes alone; empty: none")


@dataclass(frozen=True, slots=True)
class RedisTls:
    """Encryption on the way to Redis."""

    enabled: bool = setting(False, "whether the connection is encrypted")
    ca: str = setting("", "file of the authorities that are trusted; empty: the system's")
    cert: str = setting("", "file of our own certificate, where the server asks for one")
    key: str = setting("", "file of its key")
    verify: bool = setting(True, "whether the server's certificate is checked")


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """How to reach Redis, as the job queue's design document writes it. Any of it in a file, or redis.addr anywhere,
    names Redis for jobs, records and streams, unless backends: names another for one of them."""

    addr: str = setting(
        "localhost:6379", "host:port; several with commas: nodes of a cluster, or sentinels", seed=True, filled=True
    )
    username: str = setting("", "user to log in as", seed=True)
    password: str = setting("", "password to log in with", seed=True, secret=True)
    db: int = setting(0, "database number", seed=True)
    pool_size_multiplier: int = setting(10, "connections per processor at most", seed=True)
    min_idle_conns: int = setting(5, "connections of waits kept open for the next", seed=True)
    dial_timeout: timedelta = setting(timedelta(seconds=5), "how long connecting may take", seed=True)
    read_timeout: timedelta = setting(timedelta(seconds=3), "how long an answer may take", seed=True)
    write_timeout: timedelta = setting(timedelta(seconds=3), "how long sending may take", seed=True)
    max_retries: int = setting(3, "how often connecting and reading is tried again", seed=True)
    reply_bytes_max: int = setting(
        268_435_456, "bytes that one reply may take, each of its elements counted with 128 more"
    )
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
    root: str = setting("jobqueue", "what every key begins with")
    tls: RedisTls = field(default_factory=RedisTls)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How soon a failed job runs again: base x 2^(failures - 1), never more than max."""

    base: timedelta = setting(timedelta(seconds=0.5), "the wait after the first failure", seed=True)
    max: timedelta = setting(timedelta(seconds=10), "the longest wait", seed=True)


@dataclass(frozen=True, slots=True)
class HttpHandlers:
    """How jobs are posted to the URLs among the handlers."""

    refused: str = setting(
        "dead_letter",
        "what becomes of a job that is answered with 4xx: dead at once, or tried again",
        choices=("dead_letter", "fail"),
    )
    authorization: str = setting(
        "", "value of the header Authorization, such as 'Bearer …', sent to every one of them", secret=True
    )
    insecure: bool = setting(False, "whether it may be sent beyond this machine without TLS, for all to read")
    connect_timeout: timedelta = setting(timedelta(seconds=10), "how long connecting may take")


@dataclass(frozen=True, slots=True)
class WorkerSection:
    """What claims jobs and runs their handlers."""

    count: int = setting(16, "how many jobs one process runs at once", seed=True)
    heartbeat_ttl: timedelta = setting(
        timedelta(seconds=30), "the heartbeat timeout after which a worker's jobs are given to another", seed=True
    )
    max_retries: int = setting(3, "how often a failed job is tried again: 3 means 4 runs", seed=True)
    backoff: Backoff = field(default_factory=Backoff)
    priorities: tuple[str, ...] = setting(("high", "low"), "the order in which queues are served", seed=True)
    queues: Mapping[str, str] = setting(
        {"high": "high", "low": "low"},
        "the queue of each priority; on Redis jobqueue:high_priority and jobqueue:low_priority, and a name with a "
        "colon is the key of its list",
        seed=True,
    )
    weights: Mapping[str, str] = setting(
        {}, "how often each priority is served first, such as {high: 6, low: 3}; empty: strictly in their order"
    )
    rates: Mapping[str, str] = setting(
        {}, "limits of queues, such as {mail: 10/s, report: 100/h}, for all workers with this setting together"
    )
    processing_list_pattern: str = setting(
        "jobqueue:worker:%s:processing", "Redis list of a worker's jobs; %s is the worker", seed=True
    )
    heartbeat_key_pattern: str = setting(
        "jobqueue:processing:worker:%s", "Redis key of a worker's beat; %s is the worker", seed=True
    )
    completed_list: str = setting("jobqueue:completed", "Redis list of done jobs", seed=True)
    dead_letter_list: str = setting("jobqueue:dead_letter", "Redis list of dead jobs", seed=True)
    brpoplpush_timeout: timedelta = setting(timedelta(seconds=1), "how long one wait for a job may last", seed=True)
    breaker_pause: timedelta = setting(
        timedelta(seconds=0.1), "how long a worker rests where the breakers of all its queues are open", seed=True
    )
    rescues_max: int = setting(3, "how many workers a job may lose before it is dead-lettered")
    timeout: timedelta = setting(timedelta(hours=1), "how long a handler may take, unless its job says otherwise")
    grace: timedelta = setting(timedelta(seconds=30), "how long running handlers may finish after SIGTERM")
    done_max: int = setting(10_000, "how many done jobs are kept; 0: none")
    result_kept: timedelta = setting(
        timedelta(0),
        "how long at least a job is kept once it is done, with its result, unless its enqueue says; 0: as long as "
        "done_max and the sweep finished_jobs leave it",
    )
    handlers: Mapping[str, str] = setting(
        {}, "handler of each kind, as module:name or as a URL that its jobs are posted to"
    )
    handler: str = setting("", "handler of every other kind, as module:name or as a URL")
    http: HttpHandlers = field(default_factory=HttpHandlers)
    exec: str = setting("", "command that handles every other kind, e.g. 'convert {filepath}'")
    exec_env: tuple[str, ...] = setting(
        (), "variables of the environment that commands get beside PATH, HOME, LANG and the like; AWS_* for a family"
    )


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """What turns files into jobs."""

    scan_dir: str = setting("./data", "directory whose files are enqueued", seed=True)
    include_globs: tuple[str, ...] = setting(
        ("**/*",), "files to put, by their path below scan_dir; empty: all", seed=True
    )
    exclude_globs: tuple[str, ...] = setting(
        (
            "**/*.tmp",
            "**/.DS_Store",
        ),
        "files to leave, whatever include_globs says",
        seed=True,
    )
    default_priority: str = setting("low", "priority of a job that names none", seed=True)
    high_priority_exts: tuple[str, ...] = setting(
        (".pdf", ".docx", ".xlsx", ".zip"),
        "extensions of files that get the priority high, in small or capital letters",
        seed=True,
    )
    rate_limit_per_sec: int = setting(
        100, "new jobs a second at most, of all producers together; 0: no limit", seed=True
    )
    rate_limit_key: str = setting(
        "jobqueue:rate_limit:producer", "name, and on Redis the key, under which the limit is counted", seed=True
    )
    kind: str = setting("", "kind of a file's job: which handler does it; empty: the default handler")
    watch: str = setting(
        "auto", "how --watch learns of changes: auto, or poll where others write by network", choices=("auto", "poll")
    )
    settle: timedelta = setting(
        timedelta(seconds=2), "with --watch: how long a file that is not seen being closed must be unchanged"
    )
    poll_interval: timedelta = setting(
        timedelta(seconds=2), "with --watch: rest between two walks where changes are not told"
    )


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """When a queue whose jobs keep failing is left alone for a while: one breaker per queue and process."""

    failure_threshold: float = setting(0.5, "share of failures that opens it", seed=True)
    window: timedelta = setting(timedelta(seconds=60), "over which results are counted", seed=True)
    cooldown_period: timedelta = setting(timedelta(seconds=30), "how long it stays open", seed=True)
    min_samples: int = setting(20, "results needed before it may open", seed=True)
    unready_after: timedelta = setting(
        timedelta(minutes=2), "how long it may keep its queue shut before /readyz says that the process is of no use"
    )


@dataclass(frozen=True, slots=True)
class Tracing:
    """Where spans go."""

    enabled: bool = setting(False, "whether spans are sent; needs the extra otel", seed=True)
    endpoint: str = setting(
        "", "OTLP/HTTP address, such as http://localhost:4318; empty: as OTEL_… variables say", seed=True
    )


@dataclass(frozen=True, slots=True)
class Observability:
    """Logs and metrics."""

    metrics_port: int = setting(
        9090, "one more port for metrics and probes, on loopback; open only where it is named", seed=True
    )
    log_level: str = setting(
        "info", "least level that is logged", seed=True, choices=("debug", "info", "warn", "error")
    )
    queue_sample_interval: timedelta = setting(
        timedelta(seconds=2), "how old the numbers of queues in metrics may be", seed=True
    )
    tracing: Tracing = field(default_factory=Tracing)


@dataclass(frozen=True, slots=True)
class PeriodicSettings:
    """One job that is enqueued again and again."""

    kind: str = setting("", "which handler does it; empty: the name of the periodic job")
    cron: str = setting("", "when, as minute hour day-of-month month day-of-week")
    every: timedelta | None = setting(None, "or how often")
    tz: str = setting("UTC", "time zone of the cron expression")
    data: object = setting(None, "its payload, written as JSON")
    priority: str = setting("", "empty: producer.default_priority")
    missed: str = setting("once", "what becomes of slots when nothing ran", choices=("skip", "once", "all"))


@dataclass(frozen=True, slots=True)
class ReaperSettings:
    """How jobs on Redis are looked for that a worker of another program left behind: the design document's own words.
    All others are found by their deadline."""

    interval: timedelta = setting(
        timedelta(seconds=10), "how often; the same as sweeps.stuck_jobs.interval, which goes before it"
    )
    jitter: float = setting(0.25, "share of the interval by which a run may be early or late; likewise")
    scan_count: int = setting(100, "names looked at per page")
    pass_budget: timedelta = setting(
        timedelta(milliseconds=200), "how long one search may take; the next goes on from there"
    )
    page_delay: timedelta = setting(timedelta(milliseconds=10), "pause between two pages")
    page_jitter: float = setting(0.5, "share by which that pause may be shorter or longer")


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """When one sweep runs and how much one run may do; `fields` are the settings of its class."""

    use: str = setting("", "the class of a sweep of your own, as module:Class")
    enabled: bool = setting(True, "whether it runs by itself")
    interval: timedelta = setting(timedelta(seconds=60), "how often it runs")
    jitter: float = setting(0.1, "share of the interval by which a run may be early or late")
    actions_max: int = setting(1_000, "how many actions one run may take")
    runtime_max: timedelta = setting(timedelta(seconds=30), "how long one run may take")
    pause: timedelta = setting(timedelta(0), "rest between two batches")
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
        {}, "jobs enqueued again and again: a map from a name to kind, cron or every, tz, data, priority, missed"
    )
    orphans: Mapping[str, OrphanRoot] = setting(
        {}, f"where orphans are looked for: a map from a name to {ROOT_KEYS} and more"
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
