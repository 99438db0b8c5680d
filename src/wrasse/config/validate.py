"""Rules for combinations of settings. Pure: settings in, all mistakes out.

The rules of the job queue's design document come first; each mistake has its own message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from wrasse.archives.rule import PREFIX_BYTES_MAX, overlap
from wrasse.backends.redis.options import parse_addresses
from wrasse.config.backend_urls import (
    PORTS,
    BackendUrls,
    contradictions,
    is_nats,
    is_redis,
    nats_options,
    redis_options,
    resolve,
)
from wrasse.config.lease_settings import lease_rules
from wrasse.config.orphans import clashing, root_of
from wrasse.config.setting_key import named_in
from wrasse.config.settings import (
    ArchiveStream,
    ProducerSettings,
    ReaperSettings,
    RetentionSettings,
    Settings,
    StuckTasksSettings,
    SweepSettings,
    TaskTypeSettings,
    WorkerSection,
)
from wrasse.config.urls import in_clear, parse_address, parse_jobs, parse_objects, parse_store, parse_streams
from wrasse.duration import format_duration
from wrasse.errors import UsageError, WrasseError
from wrasse.jobs.file_producer.files import parse_globs
from wrasse.jobs.handler_name import check_url, is_url
from wrasse.jobs.stream_tasks.fields import check_task_type
from wrasse.jobs.worker.queue_selector import parse_rate, parse_weight
from wrasse.observability.tracing import endpoint
from wrasse.ports.groups import check_group
from wrasse.ports.limiter import RATE_MAX as LIMITER_MAX
from wrasse.ports.rules.subjects import check_pattern

ZERO = timedelta(0)
HEARTBEAT_TIMEOUT_MIN = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Broken:
    """A broken rule: the setting, what is wrong and what to write."""

    path: str
    what: str
    do: str


def broken_rules(settings: Settings, sources: Mapping[str, str]) -> Iterator[Broken]:
    """Every rule that these settings break. `sources` has every setting and section that was set."""
    urls = _served_urls(settings, sources)
    for section, rules in (
        ("worker.", _worker(settings.worker)),
        ("worker.", _queues(settings.worker)),
        ("", _others(settings)),
        ("producer.", _producer(settings.producer)),
        ("", _backends(settings, sources, urls)),
        ("", _addresses(settings)),
        ("reaper.", _reaper(settings.reaper)),
        ("", _archives(settings)),
        ("", _periodic(settings)),
        ("", _orphans(settings, urls.get("objects", ""))),
        ("leases.", lease_rules(settings.leases, urls.get("records", ""))),
        ("", retention_rules(settings.retention)),
        ("", task_rules(settings.task_types, settings.sweeper, settings.worker.queues)),
        *((f"sweeps.{name}.", _sweep(sweep)) for name, sweep in settings.sweeps.items()),
    ):
        for right, path, what, do in rules:
            if not right:
                yield Broken(section + path, what, do)


def unserved(settings: Settings, sources: Mapping[str, str], homes: BackendUrls) -> Iterator[Broken]:
    """What the configuration itself needs and no backend serves; other ports are refused when they are used."""
    named = named_in(sources)
    for port, paths in {
        "jobs": ("worker.handlers", "worker.exec", "periodic", "producer"),
        "streams": ("archiver.streams", "archival", "retention", "sweeper", "task_types"),
    }.items():
        asking = [path for path in paths if named(path)]
        if asking and not homes.serves(port):
            yield Broken(asking[0], f"needs {port}, and {homes.ports[port].refused}", homes.ports[port].do)
    for pattern, home in homes.archives:
        path = "archival" if any(each.stream == pattern for each in settings.archival) else "archiver.streams"
        if home.refused:
            yield Broken(path, f"needs a place for its archives, and {home.refused}", home.do)
        elif home.url.startswith("memory:") and homes.serves("streams") and not homes.streams.startswith("memory:"):
            what = f"would put archives of {pattern!r} in memory, where they end with the process, and trim the streams"
            yield Broken(path, what, "write destination: file:wrasse-data, or s3 with a bucket")
    for root, home in homes.sightings.items():
        if home.refused:
            yield Broken("orphans", f"needs a database for its sightings, and {home.refused}", home.do)
        if not settings.orphans[root].store and not homes.serves("objects"):
            do = f"write orphans.{root}.store: s3://bucket/prefix, or file:directory"
            yield Broken("orphans", f"has a root {root!r} without a store, and {homes.ports['objects'].refused}", do)


def _served_urls(settings: Settings, sources: Mapping[str, str]) -> Mapping[str, str]:
    """The URL of each port; unresolved if one is invalid, which is reported with the backends."""
    try:
        return {port: home.url for port, home in resolve(settings, sources).ports.items()}
    except WrasseError:
        return {port: getattr(settings.backends, port) for port in PORTS}


_Rules = Iterator[tuple[bool, str, str, str]]


def _worker(worker: WorkerSection) -> _Rules:
    timeout, wait, backoff = worker.heartbeat_ttl, worker.brpoplpush_timeout, worker.backoff
    half = format_duration(timeout / 2)
    yield worker.count >= 1, "count", f"is {worker.count}: a worker without a slot runs no jobs", "use 1 or more"
    yield (
        timeout >= HEARTBEAT_TIMEOUT_MIN,
        "heartbeat_ttl",
        f"is {format_duration(timeout)}: jobs of a busy machine would be rescued",
        "use 5s or more",
    )
    yield wait > ZERO, "brpoplpush_timeout", "is 0: a wait for a job would never end", "use a time such as 1s"
    yield (
        wait <= timeout / 2,
        "brpoplpush_timeout",
        f"is {format_duration(wait)}, more than half of worker.heartbeat_ttl",
        f"use at most {half}",
    )
    for name in ("max_retries", "rescues_max", "done_max"):
        yield getattr(worker, name) >= 0, name, f"is {getattr(worker, name)}", "use 0 or more"
    yield backoff.base > ZERO, "backoff.base", "is 0: a failing job would run at once", "use a time such as 500ms"
    yield (
        backoff.max >= backoff.base,
        "backoff.max",
        "is shorter than worker.backoff.base",
        f"use {format_duration(backoff.base)} or more",
    )
    yield worker.breaker_pause > ZERO, "breaker_pause", "is 0: a worker would poll without a pause", "use e.g. 100ms"
    yield worker.timeout > ZERO, "timeout", "is 0: every job would fail at once", "use a time such as 1h"
    yield worker.http.connect_timeout > ZERO, "http.connect_timeout", "is 0", "use a time such as 10s"
    secret = worker.http.authorization
    plain = secret.isascii() and secret.isprintable()
    yield plain, "http.authorization", "is not a valid header value", "use printable ASCII characters"
    for path, text in (("handler", worker.handler), *(("handlers", each) for each in worker.handlers.values())):
        if is_url(text):
            yield from _parsed(path, text, check_url)
            yield (
                not secret or worker.http.insecure or not in_clear(text),
                path,
                "is http:// beyond this machine, and worker.http.authorization would go there without TLS",
                "use https://, or set worker.http.insecure: true",
            )
    yield (
        not (worker.handler and worker.exec),
        "exec",
        "is set together with worker.handler, and only one of them can handle a job",
        "remove one",
    )


def _queues(worker: WorkerSection) -> _Rules:
    names = worker.priorities
    yield bool(names), "priorities", "is empty: no queue would be served", "name at least one, such as [high, low]"
    yield len(set(names)) == len(names), "priorities", "names a priority twice", "name each once"
    for name in names:
        yield (
            name in worker.queues,
            "queues",
            f"has no queue for the priority {name!r}",
            f"add {name}: <queue>, or remove it from worker.priorities",
        )
    for name, text in worker.weights.items():
        yield (
            name in names,
            "weights",
            f"has a weight for {name!r}, which is not in worker.priorities",
            f"use one of: {', '.join(names)}",
        )
        yield from _parsed("weights", text, parse_weight)
    for queue, text in worker.rates.items():
        yield (
            queue in worker.queues.values(),
            "rates",
            f"has a limit for {queue!r}, which is not a queue in worker.queues",
            f"use one of: {', '.join(worker.queues.values())}",
        )
        yield from _parsed("rates", text, partial(parse_rate, queue))
    printable = all(queue and queue.isprintable() for queue in worker.queues.values())
    yield printable, "queues", "has a queue without a printable name", "name every queue"


def _reaper(reaper: ReaperSettings) -> _Rules:
    yield reaper.interval > ZERO, "interval", "is 0: it would run without a pause", "use a time such as 10s"
    yield reaper.scan_count >= 1, "scan_count", f"is {reaper.scan_count}: it would read nothing", "use 1 or more"
    yield reaper.pass_budget > ZERO, "pass_budget", "is 0: it would read one page", "use a time such as 200ms"
    yield reaper.page_delay >= ZERO, "page_delay", "is negative", "use 0s or more"
    for name in ("jitter", "page_jitter"):
        share = getattr(reaper, name)
        yield 0 <= share < 1, name, f"is {share:g}: it is a share", "use 0 or more, and less than 1"


def _others(settings: Settings) -> _Rules:
    breaker, producer, observability = settings.circuit_breaker, settings.producer, settings.observability
    share, samples = breaker.failure_threshold, breaker.min_samples
    yield (
        producer.default_priority in settings.worker.queues,
        "producer.default_priority",
        f"is {producer.default_priority!r}, which has no queue in worker.queues",
        f"use one of: {', '.join(settings.worker.queues) or 'none is known'}",
    )
    yield (
        0 < share <= 1,
        "circuit_breaker.failure_threshold",
        f"is {share:g}: it is a share of all results",
        "use more than 0 and at most 1",
    )
    yield samples >= 1, "circuit_breaker.min_samples", f"is {samples}: it needs at least one result", "use 1 or more"
    yield breaker.window > ZERO, "circuit_breaker.window", "is 0", "use a time such as 1m"
    yield breaker.cooldown_period > ZERO, "circuit_breaker.cooldown_period", "is 0", "use a time such as 30s"
    yield breaker.unready_after > ZERO, "circuit_breaker.unready_after", "is 0", "use a time such as 2m"
    yield from _parsed("observability.tracing.endpoint", observability.tracing.endpoint, endpoint)
    port = observability.metrics_port
    yield 1 <= port <= 65535, "observability.metrics_port", f"is {port}, which is not a port", "use 1 to 65535"
    sample = observability.queue_sample_interval
    yield sample > ZERO, "observability.queue_sample_interval", "is 0", "use a time such as 2s"
    lease = settings.engine.lease
    yield (
        lease >= HEARTBEAT_TIMEOUT_MIN,
        "engine.lease",
        f"is {format_duration(lease)}: a slow run loses it",
        "use 5s or more",
    )


def _producer(producer: ProducerSettings) -> _Rules:
    rate = producer.rate_limit_per_sec
    yield 0 <= rate <= LIMITER_MAX, "rate_limit_per_sec", f"is {rate}", f"use 0 for no limit, or up to {LIMITER_MAX}"
    yield bool(producer.rate_limit_key), "rate_limit_key", "is empty", "name one"
    yield bool(producer.scan_dir), "scan_dir", "is empty", "name a directory, . for the working directory"
    for path, patterns in (("include_globs", producer.include_globs), ("exclude_globs", producer.exclude_globs)):
        for pattern in patterns:
            yield bool(pattern), path, "has an empty pattern", "remove it"
            yield from _parsed(path, pattern, lambda text: parse_globs((text,)))
    yield producer.settle >= ZERO, "settle", "is negative", "use 0s or more"
    yield producer.poll_interval > ZERO, "poll_interval", "is 0: it would scan without a pause", "use a time such as 2s"


def _addresses(settings: Settings) -> _Rules:
    http = settings.http
    listens = (("http.listen", http.listen), ("http.metrics_listen", http.metrics_listen))
    for path, address in (*listens, ("leases.listen", settings.leases.listen)):
        yield from _parsed(path, address, parse_address)
    yield from _parsed("redis.addr", settings.redis.addr, parse_addresses)


def _backends(settings: Settings, sources: Mapping[str, str], urls: Mapping[str, str]) -> _Rules:
    named = named_in(sources)
    yield from _parsed("backends.jobs", settings.backends.jobs, parse_jobs)
    yield from _parsed("backends.records", settings.backends.records, parse_store)
    yield from _parsed("backends.streams", settings.backends.streams, parse_streams)
    yield from _parsed("backends.objects", settings.backends.objects, parse_objects)
    yield from _parsed("engine.backend", settings.engine.backend, parse_store)
    with suppress(WrasseError):  # an invalid URL is reported separately
        yield from ((False, path, what, do) for path, what, do in contradictions(settings, sources))
    yield (
        not settings.worker.rates or not urls.get("jobs", "").startswith(("s3:", "file:")),
        "worker.rates",
        "limits queues, and jobs on a bucket or a directory have no limits",
        "remove it, or store jobs in sqlite:wrasse.db or redis://host:6379/0",
    )
    yield from _redis(settings, named, urls)
    for url in (settings.backends.records, settings.backends.streams, settings.engine.backend):
        if is_nats(url):
            yield from _parsed("nats", url, partial(nats_options, settings.nats, named))


def _redis(settings: Settings, named: Callable[[str], bool], urls: Mapping[str, str]) -> _Rules:
    own = settings.redis
    for name in ("pool_size_multiplier", "min_idle_conns", "max_retries", "db"):
        least = 1 if name == "pool_size_multiplier" else 0
        yield getattr(own, name) >= least, f"redis.{name}", f"is {getattr(own, name)}", f"use {least} or more"
    for name in ("dial_timeout", "read_timeout", "write_timeout"):
        yield getattr(own, name) > ZERO, f"redis.{name}", "is 0: no operation could succeed", "use a time such as 3s"
    yield bool(own.root) and own.root.isprintable(), "redis.root", "is not a valid name", "use a word such as jobqueue"
    yield not (own.cluster and own.sentinel), "redis.sentinel", "is set together with redis.cluster", "keep one of them"
    backends = settings.backends
    given = [url for url in (backends.jobs, backends.records, backends.streams) if is_redis(url)]
    if given or any(is_redis(url) for url in urls.values()) or named("redis"):
        for url in given or [""]:
            yield from _parsed("redis", url or "section", partial(_redis_of, settings, named))


def _redis_of(settings: Settings, named: Callable[[str], bool], url: str) -> object:
    return redis_options(settings, named, url if is_redis(url) else "")


def _archives(settings: Settings) -> _Rules:
    own, threshold = settings.archiver, settings.archiver.lag_threshold
    yield threshold.messages >= 1, "archiver.lag_threshold.messages", "is below 1", "use a number such as 10000"
    yield threshold.age > ZERO, "archiver.lag_threshold.age", "is 0", "use a time such as 1h"
    yield own.lag_repeat > ZERO, "archiver.lag_repeat", "is 0", "use a time such as 1h"
    named = [("archiver.streams", each) for each in settings.archiver.streams]
    named += [("archival", each) for each in settings.archival]
    for number, (path, each) in enumerate(named):
        yield bool(each.stream), path, "has an entry without a stream", 'write stream: "gbe.events.audit.*"'
        yield from _parsed(path, each.stream, check_pattern)
        yield from ((right, path, f"{what} for {each.stream!r}", do) for right, what, do in _archive(each))
        for _, other in named[:number]:
            yield (
                not (each.stream and other.stream) or not overlap(each.stream, other.stream),
                path,
                f"has {each.stream!r} and {other.stream!r}, which match the same streams: they would be archived twice",
                "let every stream match one entry",
            )


def _archive(each: ArchiveStream) -> Iterator[tuple[bool, str, str]]:
    yield each.batch_size >= 1, f"has a batch_size of {each.batch_size}", "use 1 or more"
    yield each.batch_bytes >= 1, f"has a batch_bytes of {each.batch_bytes}", "use 1 or more"
    yield each.batch_timeout > ZERO, "has a batch_timeout of 0", "use a time such as 60s"
    clean = each.prefix == each.prefix.strip("/") and 0 < len(each.prefix.encode()) <= PREFIX_BYTES_MAX
    yield (
        clean and each.prefix.isprintable() and "" not in each.prefix.split("/"),
        f"has the prefix {each.prefix!r}",
        f"use 1 to {PREFIX_BYTES_MAX} bytes without a slash at either end",
    )
    yield "/" not in each.domain and each.domain not in (".", ".."), f"has the domain {each.domain!r}", "use one word"
    yield (
        not each.bucket or each.destination == "s3",
        f"has a bucket and the destination {each.destination!r}",
        "write destination: s3, or remove the bucket",
    )
    named = f"s3://{each.bucket}" if each.destination == "s3" and each.bucket else each.destination
    if named not in ("", "s3"):
        for what, do in _unfit(named):
            yield False, f"has an invalid destination: {what}", do


def _periodic(settings: Settings) -> _Rules:
    for name, own in settings.periodic.items():
        path = f"periodic.{name}"
        try:
            own.as_periodic(name)
        except WrasseError as why:
            yield False, path, f"is invalid: {why.message}", why.do
        yield (
            not own.priority or own.priority in settings.worker.queues,
            path,
            f"has the priority {own.priority!r}, which has no queue in worker.queues",
            f"use one of: {', '.join(settings.worker.queues)}",
        )


def _orphans(settings: Settings, objects: str) -> _Rules:
    for name, own in settings.orphans.items():
        path = f"orphans.{name}"
        try:
            root_of(name, own, settings.gc)
        except WrasseError as why:
            yield False, path, f"is invalid: {why.message}", why.do
        yield from _parsed(path, own.store, parse_objects)
        yield own.interval is None or own.interval > ZERO, path, "has an interval of 0", "use a time such as 1h"
    for one, other in clashing(settings.orphans, objects):
        yield False, f"orphans.{other}", f"is nested with the root {one}", "use roots that are not nested"


def _unfit(url: str) -> Iterator[tuple[str, str]]:
    try:
        parse_objects(url)
    except WrasseError as why:
        yield why.message, why.do


def _parsed(path: str, text: str, parse: Callable[[str], object]) -> _Rules:
    if text:
        try:
            parse(text)
        except WrasseError as why:
            yield False, path, f"is invalid: {why.message}", why.do


def _sweep(sweep: SweepSettings) -> _Rules:
    off = "enabled: false turns it off"
    yield sweep.interval > ZERO, "interval", "is 0: it would run without a pause", f"use a time such as 10s; {off}"
    yield sweep.runtime_max > ZERO, "runtime_max", "is 0: no run could do anything", f"use a time such as 30s; {off}"
    yield 0 <= sweep.jitter < 1, "jitter", f"is {sweep.jitter:g}: it is a share", "use 0 or more and less than 1"
    yield sweep.actions_max >= 1, "actions_max", f"is {sweep.actions_max}", f"use 1 or more; {off}"
    for name, value in sweep.fields.items():
        least = 1 if name == "batch_max" else 0
        if isinstance(value, int):
            yield value >= least, name, f"is {value}", f"use {least} or more"


def task_rules(
    types: Mapping[str, TaskTypeSettings], own_sweep: StuckTasksSettings, queues: Mapping[str, str]
) -> Iterator[tuple[bool, str, str, str]]:
    """The rules: whether each holds, for which setting, what is wrong, and what to write."""
    for name, own in types.items():
        try:
            check_task_type(name)
        except UsageError as why:
            yield False, "task_types", f"has {why.message}", why.do
        path = f"task_types.{name}"
        yield (
            name not in queues.values(),
            "task_types",
            f"has the type {name!r}, which is a queue of worker.queues too",
            "give one of them another name",
        )
        yield own.workers >= 1, "task_types", f"{path}.workers is {own.workers}", "use 1 or more"
        yield own.max_retries >= 0, "task_types", f"{path}.max_retries is {own.max_retries}", "use 0 or more"
        span = own.step_timeout or own_sweep.stuck_threshold
        yield (
            span >= HEARTBEAT_TIMEOUT_MIN,
            "task_types",
            f"{path}.step_timeout is {format_duration(span)}: tasks of a busy machine would be rescued",
            "use 5s or more",
        )
    for name in ("interval", "lock_ttl", "stuck_threshold"):
        yield getattr(own_sweep, name) > ZERO, f"sweeper.{name}", "is 0", "use a time such as 30s"


def retention_rules(rules: Mapping[str, RetentionSettings]) -> Iterator[tuple[bool, str, str, str]]:
    """The rules: whether each holds, for which setting, what is wrong, and what to write."""
    for pattern, own in rules.items():
        why = _unfit_rule(pattern, own)
        yield why is None, "retention", f"is invalid: {why.message if why else ''}", why.do if why else ""
        yield (
            own.age > timedelta(0),
            "retention",
            f"keeps nothing of {pattern!r}: its age is missing or 0",
            "write a duration such as 7d, or remove the line: without a rule nothing is trimmed",
        )


def _unfit_rule(pattern: str, own: RetentionSettings) -> WrasseError | None:
    try:
        check_pattern(pattern)
        for group in own.protect:
            check_group("a", group)
    except WrasseError as why:
        return why
    return None
