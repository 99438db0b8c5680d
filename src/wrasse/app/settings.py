"""Every setting: its name, type, default and meaning, as frozen structs. The reference page is written from here.

The nesting is that of the YAML file: `Settings.worker.backoff.base` is `worker.backoff.base` there, and
`WRASSE_WORKER_BACKOFF_BASE` in the environment. Names and defaults that a design document fixes carry `seed=True`;
those also have their bare environment name (`WORKER_BACKOFF_BASE`). The settings of a sweep are the fields of its
class, see `app/schema.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

from wrasse.app.archive_settings import ArchiverSettings, ArchiveStream
from wrasse.app.nats_settings import Nats
from wrasse.app.orphan_settings import ROOT_KEYS, OrphanRoot, OrphanSeed
from wrasse.app.retention_settings import RETENTION_KEYS, RetentionSettings
from wrasse.app.setting_key import Key as Key
from wrasse.app.settings_leases import LeaseSettings
from wrasse.app.task_settings import TYPE_KEYS, StuckTasksSettings, TaskTypeSettings

EMBEDDED = "sqlite:wrasse.db"
EMBEDDED_OBJECTS = "file:wrasse-data"


@dataclass(frozen=True, slots=True)
class Backends:
    """Where things are kept: a URL per port. A port that is not named follows those that are, or is embedded."""

    jobs: Annotated[
        str,
        Key(
            "where jobs live: sqlite:wrasse.db, sqlite:///absolute/path, redis://host:6379/0, memory:, or a bucket or "
            "directory: s3://bucket/prefix, file:wrasse-data; empty: see Where things live"
        ),
    ] = ""
    records: Annotated[
        str,
        Key(
            "where leases and other small records live, the same forms, nats://host:4222, s3://bucket/prefix or "
            "file:wrasse-data; empty: see Where things live"
        ),
    ] = ""
    streams: Annotated[
        str,
        Key(
            "where streams of messages live, as jobs do, Redis 7.0 or newer; or nats://host:4222; empty: see Where "
            "things live"
        ),
    ] = ""
    objects: Annotated[
        str,
        Key(
            "where archives and the state of leases live: file:wrasse-data, file:///absolute/path, s3://bucket/prefix "
            "or memory:; empty: see Where things live"
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What all sweeps share."""

    backend: Annotated[
        str,
        Key(
            "where leases of sweeps, cursors, reports and the journal live; empty: the first server that is named for "
            "records, jobs or streams"
        ),
    ] = ""
    journal_kept: Annotated[timedelta, Key("how long settled journal lines are kept")] = timedelta(days=90)
    lease: Annotated[timedelta, Key("how long the lease of a running sweep lasts without renewal")] = timedelta(
        seconds=10
    )
    skew_max: Annotated[timedelta, Key("how far this machine's clock may be from the backend's before sweeps hold")] = (
        timedelta(seconds=5)
    )


@dataclass(frozen=True, slots=True)
class Http:
    """The status page, metrics and probes."""

    listen: Annotated[
        str,
        Key(
            "address of status page, metrics and probes; beyond loopback only metrics and probes "
            "are served; empty: none"
        ),
    ] = "127.0.0.1:9341"
    metrics_listen: Annotated[str, Key("a second address, for metrics and probes alone; empty: none")] = ""


@dataclass(frozen=True, slots=True)
class RedisTls:
    """Encryption on the way to Redis."""

    enabled: Annotated[bool, Key("whether the connection is encrypted")] = False
    ca: Annotated[str, Key("file of the authorities that are trusted; empty: the system's")] = ""
    cert: Annotated[str, Key("file of our own certificate, where the server asks for one")] = ""
    key: Annotated[str, Key("file of its key")] = ""
    verify: Annotated[bool, Key("whether the server's certificate is checked")] = True


@dataclass(frozen=True, slots=True)
class Redis:
    """How to reach Redis, as the job queue's design document writes it. Any of it in a file, or redis.addr anywhere,
    names Redis for jobs, records and streams, unless backends: names another for one of them."""

    addr: Annotated[
        str, Key("host:port; several with commas: nodes of a cluster, or sentinels", seed=True)
    ] = "localhost:6379"
    username: Annotated[str, Key("user to log in as", seed=True)] = ""
    password: Annotated[str, Key("password to log in with", seed=True, secret=True)] = ""
    db: Annotated[int, Key("database number", seed=True)] = 0
    pool_size_multiplier: Annotated[int, Key("connections per processor at most", seed=True)] = 10
    min_idle_conns: Annotated[int, Key("connections of waits kept open for the next", seed=True)] = 5
    dial_timeout: Annotated[timedelta, Key("how long connecting may take", seed=True)] = timedelta(seconds=5)
    read_timeout: Annotated[timedelta, Key("how long an answer may take", seed=True)] = timedelta(seconds=3)
    write_timeout: Annotated[timedelta, Key("how long sending may take", seed=True)] = timedelta(seconds=3)
    max_retries: Annotated[int, Key("how often connecting and reading is tried again", seed=True)] = 3
    reply_bytes_max: Annotated[
        int, Key("bytes that one reply may take, each of its elements counted with 128 more")
    ] = 268_435_456
    client: Annotated[
        str, Key("own, redis-py, or module:callable that returns a redis.asyncio.Redis (extra redis-py)")
    ] = "own"
    credential_provider: Annotated[
        str, Key("module:callable that returns a credential provider of redis-py, such as for IAM or Entra ID")
    ] = ""
    cluster: Annotated[bool, Key("whether it is a cluster; all keys of a root then share one slot")] = False
    sentinel: Annotated[str, Key("the master's name, if redis.addr names sentinels")] = ""
    sentinel_username: Annotated[str, Key("user to log in as at the sentinels")] = ""
    sentinel_password: Annotated[str, Key("password to log in with at the sentinels", secret=True)] = ""
    root: Annotated[str, Key("what every key begins with")] = "jobqueue"
    tls: RedisTls = field(default_factory=RedisTls)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How soon a failed job runs again: base x 2^(failures - 1), never more than max."""

    base: Annotated[timedelta, Key("the wait after the first failure", seed=True)] = timedelta(seconds=0.5)
    max: Annotated[timedelta, Key("the longest wait", seed=True)] = timedelta(seconds=10)


def _queues() -> Mapping[str, str]:
    return {"high": "high", "low": "low"}


@dataclass(frozen=True, slots=True)
class HttpHandlers:
    """How jobs are posted to the URLs among the handlers."""

    refused: Annotated[
        str,
        Key("what becomes of a job that is answered with 4xx: dead at once, or tried again", choices=("bury", "fail")),
    ] = "bury"
    authorization: Annotated[
        str, Key("value of the header Authorization, such as 'Bearer …', sent to every one of them", secret=True)
    ] = ""
    insecure: Annotated[bool, Key("whether it may be sent beyond this machine without TLS, for all to read")] = False
    connect_timeout: Annotated[timedelta, Key("how long connecting may take")] = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What takes jobs and runs their handlers."""

    count: Annotated[int, Key("how many jobs one process runs at once", seed=True)] = 16
    heartbeat_ttl: Annotated[
        timedelta, Key("the silence after which a worker's jobs are given to another", seed=True)
    ] = timedelta(seconds=30)
    max_retries: Annotated[int, Key("how often a failed job is tried again: 3 means 4 runs", seed=True)] = 3
    backoff: Backoff = field(default_factory=Backoff)
    priorities: Annotated[tuple[str, ...], Key("the order in which queues are served", seed=True)] = ("high", "low")
    queues: Annotated[
        Mapping[str, str],
        Key("the queue of each priority; on Redis jobqueue:high_priority and jobqueue:low_priority, and a name with a "
            "colon is the key of its list", seed=True),
    ] = field(default_factory=_queues)
    weights: Annotated[
        Mapping[str, str],
        Key("how often each priority is served first, such as {high: 6, low: 3}; empty: strictly in their order"),
    ] = field(default_factory=dict)
    rates: Annotated[
        Mapping[str, str],
        Key("limits of queues, such as {mail: 10/s, report: 100/h}, for all workers with this setting together"),
    ] = field(default_factory=dict)
    processing_list_pattern: Annotated[str, Key("Redis list of a worker's jobs; %s is the worker", seed=True)] = (
        "jobqueue:worker:%s:processing"
    )
    heartbeat_key_pattern: Annotated[str, Key("Redis key of a worker's beat; %s is the worker", seed=True)] = (
        "jobqueue:processing:worker:%s"
    )
    completed_list: Annotated[str, Key("Redis list of done jobs", seed=True)] = "jobqueue:completed"
    dead_letter_list: Annotated[str, Key("Redis list of dead jobs", seed=True)] = "jobqueue:dead_letter"
    brpoplpush_timeout: Annotated[timedelta, Key("how long one wait for a job may last", seed=True)] = timedelta(
        seconds=1
    )
    breaker_pause: Annotated[
        timedelta, Key("how long a worker rests where the breakers of all its queues are open", seed=True)
    ] = timedelta(seconds=0.1)
    rescues_max: Annotated[int, Key("how many workers a job may lose before it is buried")] = 3
    timeout: Annotated[timedelta, Key("how long a handler may take, unless its job says otherwise")] = timedelta(
        hours=1
    )
    grace: Annotated[timedelta, Key("how long running handlers may finish after SIGTERM")] = timedelta(seconds=30)
    done_max: Annotated[int, Key("how many done jobs are kept; 0: none")] = 10_000
    result_kept: Annotated[
        timedelta,
        Key(
            "how long at least a job is kept once it is done, with its result, unless its put says; 0: as long as "
            "done_max and the sweep finished_jobs leave it"
        ),
    ] = timedelta(0)
    handlers: Annotated[
        Mapping[str, str], Key("handler of each kind, as module:name or as a URL that its jobs are posted to")
    ] = field(default_factory=dict)
    handler: Annotated[str, Key("handler of every other kind, as module:name or as a URL")] = ""
    http: HttpHandlers = field(default_factory=HttpHandlers)
    exec: Annotated[str, Key("command that handles every other kind, e.g. 'convert {filepath}'")] = ""
    exec_env: Annotated[
        tuple[str, ...],
        Key("variables of the environment that commands get beside PATH, HOME, LANG and the like; AWS_* for a family"),
    ] = ()


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """What turns files into jobs."""

    scan_dir: Annotated[str, Key("directory whose files are put", seed=True)] = "./data"
    include_globs: Annotated[
        tuple[str, ...], Key("files to put, by their path below scan_dir; empty: all", seed=True)
    ] = ("**/*",)
    exclude_globs: Annotated[tuple[str, ...], Key("files to leave, whatever include_globs says", seed=True)] = (
        "**/*.tmp",
        "**/.DS_Store",
    )
    default_priority: Annotated[str, Key("priority of a job that names none", seed=True)] = "low"
    high_priority_exts: Annotated[
        tuple[str, ...], Key("extensions of files that get the priority high, in small or capital letters", seed=True)
    ] = (".pdf", ".docx", ".xlsx", ".zip")
    rate_limit_per_sec: Annotated[
        int, Key("new jobs a second at most, of all producers together; 0: no limit", seed=True)
    ] = 100
    rate_limit_key: Annotated[str, Key("name, and on Redis the key, under which the limit is counted", seed=True)] = (
        "jobqueue:rate_limit:producer"
    )
    kind: Annotated[str, Key("kind of a file's job: which handler does it; empty: the default handler")] = ""
    watch: Annotated[
        str, Key("how --watch learns of changes: auto, or poll where others write by network", choices=("auto", "poll"))
    ] = "auto"
    settle: Annotated[
        timedelta, Key("with --watch: how long a file that is not seen being closed must be unchanged")
    ] = timedelta(seconds=2)
    poll_interval: Annotated[timedelta, Key("with --watch: rest between two walks where changes are not told")] = (
        timedelta(seconds=2)
    )


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """When a queue whose jobs keep failing is left alone for a while: one breaker per queue and process."""

    failure_threshold: Annotated[float, Key("share of failures that opens it", seed=True)] = 0.5
    window: Annotated[timedelta, Key("over which results are counted", seed=True)] = timedelta(seconds=60)
    cooldown_period: Annotated[timedelta, Key("how long it stays open", seed=True)] = timedelta(seconds=30)
    min_samples: Annotated[int, Key("results needed before it may open", seed=True)] = 20
    unready_after: Annotated[
        timedelta, Key("how long it may keep its queue shut before /readyz says that the process is of no use")
    ] = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Tracing:
    """Where spans go."""

    enabled: Annotated[bool, Key("whether spans are sent; needs the extra otel", seed=True)] = False
    endpoint: Annotated[
        str, Key("OTLP/HTTP address, such as http://localhost:4318; empty: as OTEL_… variables say", seed=True)
    ] = ""


@dataclass(frozen=True, slots=True)
class Observability:
    """Logs and metrics."""

    metrics_port: Annotated[
        int, Key("one more port for metrics and probes, on loopback; open only where it is named", seed=True)
    ] = 9090
    log_level: Annotated[
        str, Key("least level that is logged", seed=True, choices=("debug", "info", "warn", "error"))
    ] = "info"
    queue_sample_interval: Annotated[timedelta, Key("how old the numbers of queues in metrics may be", seed=True)] = (
        timedelta(seconds=2)
    )
    tracing: Tracing = field(default_factory=Tracing)


@dataclass(frozen=True, slots=True)
class PeriodicSettings:
    """One job that is put again and again."""

    kind: Annotated[str, Key("which handler does it; empty: the name of the periodic job")] = ""
    cron: Annotated[str, Key("when, as minute hour day-of-month month day-of-week")] = ""
    every: Annotated[timedelta | None, Key("or how often")] = None
    tz: Annotated[str, Key("time zone of the cron expression")] = "UTC"
    data: Annotated[object, Key("its payload, written as JSON")] = None
    priority: Annotated[str, Key("empty: producer.default_priority")] = ""
    missed: Annotated[str, Key("what becomes of slots when nothing ran", choices=("skip", "once", "all"))] = "once"


@dataclass(frozen=True, slots=True)
class ReaperSettings:
    """How jobs on Redis are looked for that a worker of another program left behind: the design document's own words.
    All others are found by their deadline."""

    interval: Annotated[timedelta, Key("how often; the same as sweeps.stuck_jobs.interval, which goes before it")] = (
        timedelta(seconds=10)
    )
    jitter: Annotated[float, Key("share of the interval by which a run may be early or late; likewise")] = 0.25
    scan_count: Annotated[int, Key("names looked at per page")] = 100
    pass_budget: Annotated[timedelta, Key("how long one search may take; the next goes on from there")] = (
        timedelta(milliseconds=200)
    )
    page_delay: Annotated[timedelta, Key("pause between two pages")] = timedelta(milliseconds=10)
    page_jitter: Annotated[float, Key("share by which that pause may be shorter or longer")] = 0.5


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """When one sweep runs and how much one run may do; `fields` are the settings of its class."""

    use: Annotated[str, Key("the class of a sweep of your own, as module:Class")] = ""
    enabled: Annotated[bool, Key("whether it runs by itself")] = True
    interval: Annotated[timedelta, Key("how often it runs")] = timedelta(seconds=60)
    jitter: Annotated[float, Key("share of the interval by which a run may be early or late")] = 0.1
    actions_max: Annotated[int, Key("how many actions one run may take")] = 1_000
    runtime_max: Annotated[timedelta, Key("how long one run may take")] = timedelta(seconds=30)
    pause: Annotated[timedelta, Key("rest between two batches")] = timedelta(0)
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration."""

    backends: Backends = field(default_factory=Backends)
    engine: EngineSettings = field(default_factory=EngineSettings)
    http: Http = field(default_factory=Http)
    redis: Redis = field(default_factory=Redis)
    nats: Nats = field(default_factory=Nats)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    producer: ProducerSettings = field(default_factory=ProducerSettings)
    circuit_breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    observability: Observability = field(default_factory=Observability)
    reaper: ReaperSettings = field(default_factory=ReaperSettings)
    archiver: ArchiverSettings = field(default_factory=ArchiverSettings)
    archival: Annotated[
        tuple[ArchiveStream, ...], Key("another place for the entries of archiver.streams; both count")
    ] = ()
    periodic: Annotated[
        Mapping[str, PeriodicSettings],
        Key("jobs put again and again: a map from a name to kind, cron or every, tz, data, priority, missed"),
    ] = field(default_factory=dict)
    orphans: Annotated[
        Mapping[str, OrphanRoot], Key(f"where orphans are looked for: a map from a name to {ROOT_KEYS} and more")
    ] = field(default_factory=dict)
    gc: OrphanSeed = field(default_factory=OrphanSeed)
    leases: LeaseSettings = field(default_factory=LeaseSettings)
    retention: Annotated[
        Mapping[str, RetentionSettings],
        Key(
            "how long streams keep their entries: a map from a subject or pattern to a duration, or to "
            f"{RETENTION_KEYS}; a stream without a rule is never trimmed",
        ),
    ] = field(default_factory=dict)
    task_types: Annotated[
        Mapping[str, TaskTypeSettings], Key(f"the types of tasks: a map from a type to {TYPE_KEYS}")
    ] = field(default_factory=dict)
    sweeper: StuckTasksSettings = field(default_factory=StuckTasksSettings)
    sweeps: Mapping[str, SweepSettings] = field(default_factory=dict)
