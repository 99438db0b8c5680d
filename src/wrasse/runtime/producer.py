"""The producer role: files of a directory become jobs, once or for as long as the process runs.

A stop is quick: a wait ends at once, and an enqueue that a backend does not answer is abandoned after a moment. Its
files are enqueued by the next walk, or were stored after all and are refused by their id.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from wrasse.cli.output import progress
from wrasse.clock import Clock
from wrasse.config.load import Config
from wrasse.errors import UsageError
from wrasse.jobs.file_producer.files import FileRules
from wrasse.jobs.file_producer.producer import PATIENCE, FileProducer, FileProducerSettings, check_directory
from wrasse.jobs.file_producer.watcher import DirectoryWatcher
from wrasse.jobs.tally import Tally
from wrasse.runtime.open_ports import OpenPorts
from wrasse.runtime.worker import build_pace, build_producer

ROLE = "producer"
_STOP_MAX = timedelta(seconds=0.1)
_REPORT_EVERY = timedelta(seconds=10)
_SHOWN_EVERY = timedelta(seconds=0.1)
_log = logging.getLogger("wrasse.producer")


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a walk."""

    directory: str
    found: int
    enqueued: int
    known: int
    skipped: Mapping[str, int]
    stopped: bool

    def __str__(self) -> str:
        files = "file" if self.found == 1 else "files"
        text = f"found {self.found} {files}: enqueued {self.enqueued}, {self.known} known already"
        if self.skipped:
            text += "; skipped " + ", ".join(f"{count} {reason}" for reason, count in self.skipped.items())
        return text + ("; stopped before the end" if self.stopped else "")


def producer_directory(config: Config, roles: tuple[str, ...], *, watch: bool) -> str:
    """The directory whose files this process enqueues; empty if it is no producer; an error if it does not exist. With
    all roles, a producer: section makes it one; its default priority alone, which every enqueue uses, does not."""
    mine = [path for path in config.sources if path.startswith("producer.") and path != "producer.default_priority"]
    if ROLE in roles or ("all" in roles and mine):
        return check_directory(config.settings.producer.scan_dir)
    if watch:
        raise UsageError(
            "--watch is for a producer, and none is started", do="add --role=producer, or a producer: section"
        )
    return ""


@dataclass(frozen=True, slots=True)
class ProducerRun:
    """What a producer does. `once`: it walks and ends; else it watches. `alone`: the process has no other role."""

    directory: str
    once: bool
    alone: bool


class ProducerRuntime:
    """The producer of one process."""

    def __init__(self, config: Config, opened: OpenPorts, clock: Clock, tally: Tally, run: ProducerRun) -> None:
        own, worker = config.settings.producer, config.settings.worker
        rules = FileRules.of(own.include_globs, own.exclude_globs, own.high_priority_exts)
        settings = FileProducerSettings(
            run.directory,
            rules,
            worker.queues,
            priority=own.default_priority,
            kind=own.kind,
            settle=own.settle,
            poll=own.poll_interval,
            # A single walk fails on an outage; a daemon waits for its end.
            patience=PATIENCE if run.once and run.alone else None,
        )
        producer = build_producer(config.settings, opened, clock, tally)
        self._files = FileProducer(
            settings, producer, build_pace(config.settings, opened, own.rate_limit_per_sec), clock
        )
        self._watching = None if run.once else DirectoryWatcher(self._files, clock, use_inotify=own.watch == "auto")
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ends `run` at once, or after the current enqueue."""
        self._stopping.set()
        if self._watching is not None:
            self._watching.stop()
        self._files.stop()

    async def run(self) -> None:
        """Enqueues the files; returns when they are enqueued, or when it is stopped."""
        async with asyncio.TaskGroup() as group:
            working = group.create_task(self._work())
            others = [group.create_task(self._cancel_on_stop(working)), group.create_task(self._report())]
            await asyncio.wait([working])
            for other in others:
                other.cancel()
        _log.info("walked" if self._watching is None else "watched", extra=self._facts())

    def summary(self) -> Summary:
        """What was found and enqueued so far."""
        done = self._files.done
        skipped = {reason.value: count for reason, count in sorted(done.seen.skipped.items())}
        return Summary(self._files.settings.root, done.seen.found, done.enqueued, done.known, skipped, done.stopped)

    async def _work(self) -> None:
        await (self._files.walk() if self._watching is None else self._watching.run())

    async def _cancel_on_stop(self, working: asyncio.Task[None]) -> None:
        await self._stopping.wait()
        await asyncio.wait([working], timeout=_STOP_MAX.total_seconds())
        working.cancel()

    async def _report(self) -> None:
        """Shows a progress bar on a terminal, else logs a line every _REPORT_EVERY."""
        if self._watching is None and sys.stderr.isatty():
            with progress("files") as more:
                shown = 0
                while True:
                    done = self._files.done.enqueued + self._files.done.known
                    more(done - shown)
                    shown = done
                    await asyncio.sleep(_SHOWN_EVERY.total_seconds())
        reported = self._facts()
        while True:
            await asyncio.sleep(_REPORT_EVERY.total_seconds())
            if reported != self._facts():
                reported = self._facts()
                _log.info("producing", extra=reported)

    def _facts(self) -> Mapping[str, int]:
        """Counts only: logs do not contain file names."""
        done = self._files.done
        return {"found": done.seen.found, "enqueued": done.enqueued, "known": done.known, "skipped": done.skipped}
