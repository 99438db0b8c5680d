"""The command line: its commands, and how each of them ends.

A command is imported when it is called, so that `wrasse --version` and shell completion stay fast. An error is written
in two lines, `error:` and `do:`, to stderr; --debug shows the traceback. Exit codes: 0 done, 1 failed, 2 usage, 3
refused for safety.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn

import click

from wrasse import __version__
from wrasse.config.redaction import hide
from wrasse.errors import UsageError, WrasseError


class LazyGroup(click.Group):
    """Commands by name, imported when they are used; a typing error gets a suggestion. `homes`: where each is, as
    module:attribute (the attribute defaults to the name), or a group; and one line for the list."""

    def __init__(
        self, name: str, homes: Mapping[str, tuple[str | click.Command, str]], *, about: str, examples: str
    ) -> None:
        super().__init__(name, help=about, epilog=examples, no_args_is_help=True)
        self.homes = homes
        self.context_settings = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of the list."""
        return list(self.homes)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command; imports its module."""
        if name not in self.homes:
            return None
        home = self.homes[name][0]
        if isinstance(home, click.Command):
            return home
        module, _, attribute = home.partition(":")
        command = getattr(importlib.import_module(f"wrasse.cli.{module}"), attribute or name)
        assert isinstance(command, click.Command), f"{name} is a command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As usual, but an unknown name gets a suggestion."""
        name = args[0]
        if name not in self.homes and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.homes, n=1, cutoff=0.5)
            hint = f"write {near[0]!r}" if near else f"use one of: {', '.join(self.homes)}"
            raise click.UsageError(f"there is no command {name!r}\ndo: {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """As usual, but a closed pipe is not a failure."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Python would report the error again when it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise click.exceptions.Exit(0) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in self.homes.items()])


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: Sequence[str]) -> None:
    """Run the benchmarks, in a checkout of the project.

    \b
    Examples:
      wrasse bench --list
      wrasse bench jobs_sqlite --quick
    """
    import importlib.util
    import runpy

    sys.path.insert(0, "")
    if importlib.util.find_spec("bench") is None or importlib.util.find_spec("bench.__main__") is None:
        raise UsageError(
            "the benchmarks are part of the project's checkout, which this directory is not",
            do="clone the project and call `python3 dev.py bench` there",
        )
    sys.argv = ["bench", *arguments]
    runpy.run_module("bench", run_name="__main__", alter_sys=True)


jobs = LazyGroup(
    "jobs",
    {
        "enqueue": ("jobs.enqueue", "enqueue one job, or one per line"),
        "list": ("jobs.inspect:list_jobs", "jobs of a state, page by page"),
        "show": ("jobs.inspect", "one job: state, history, payload"),
        "peek": ("jobs.inspect", "the next jobs, with the beginning of their payloads"),
        "stats": ("jobs.inspect", "the number of jobs by state, and the workers"),
        "dead": ("jobs.inspect", "dead jobs and why they died"),
        "requeue": ("jobs.change", "make dead jobs ready again"),
        "replay": ("jobs.change", "make many dead jobs ready again, canaries first"),
        "cancel": ("jobs.change", "cancel waiting or running jobs"),
        "purge": ("jobs.change", "delete finished or waiting jobs permanently"),
        "fsck": ("jobs.change", "check stored jobs for inconsistencies, and repair them"),
    },
    about="Enqueue, list, show, requeue, cancel and purge jobs.",
    examples="""\b
Examples:
  wrasse jobs enqueue --kind=resize '{"path": "a.png"}'
  wrasse jobs stats
  wrasse jobs dead --reason=timeout
""",
)
periodic = LazyGroup(
    "periodic",
    {"list": ("periodic:list_periodic", "periodic jobs: their last slot and the next")},
    about="Jobs that are enqueued periodically, by settings or by a program.",
    examples="""\b
Examples:
  wrasse periodic list
  wrasse periodic list --json
""",
)
streams = LazyGroup(
    "streams",
    {
        "publish": ("streams", "publish one message, or one per line"),
        "read": ("streams", "read messages, with a group or read-only"),
        "info": ("streams", "streams and the positions of their groups"),
    },
    about="Publish and read messages, and see the position of each group.",
    examples="""\b
Examples:
  wrasse streams publish orders.eu.paid '{"order": 42}'
  wrasse streams read 'orders.*.paid' --follow
  wrasse streams info
""",
)
archives = LazyGroup(
    "archives",
    {
        "list": ("archives:list_", "archives in order, with their contents"),
        "read": ("archives:read_", "messages in order, each once"),
        "replay": ("archives:replay_", "publish archived messages into a stream again"),
        "restart": ("archives:restart_", "continue with a stream that was set back"),
        "verify": ("archives:verify_", "verify that no message is missing or duplicate"),
    },
    about="List archives, read or republish their messages, and verify that none is missing or duplicate.",
    examples="""\b
Examples:
  wrasse archives list
  wrasse archives read 'gbe.events.audit.*' --since=7d
  wrasse archives verify
  wrasse archives replay gbe.events.audit.change --into=test.audit --dry-run
""",
)
leases = LazyGroup(
    "leases",
    {
        "list": ("leases.inspect:list_", "keys and their holders"),
        "show": ("leases.inspect", "everything about a key"),
        "get": ("leases.inspect", "the state of a key"),
        "acquire": ("leases.change", "acquire the lease of a key"),
        "keep": ("leases.change", "renew a lease"),
        "update": ("leases.change", "stage a new state under a lease"),
        "remove": ("leases.change", "stage the removal of the state under a lease"),
        "release": ("leases.change", "release a lease, and commit or discard what is staged"),
        "attach": ("leases.change", "stage a file under a lease, to be committed with the state"),
        "detach": ("leases.change", "stage the removal of a file under a lease"),
        "attachments": ("leases.change", "the files of a key"),
        "fetch": ("leases.change", "the bytes of one file of a key"),
        "transaction": ("leases.inspect", "show or decide a transaction"),
        "messages": ("leases.inspect", "messages of a queue of the lease API"),
        "fsck": ("leases.inspect", "check every key, object and index entry, and repair them"),
    },
    about="Leases on keys, and state under leases.",
    examples="""\b
Examples:
  wrasse leases acquire orders/42 --ttl=5m
  wrasse leases update orders/42 --lease=d5arif5qkajneqfrmsb0 '{"paid": true}'
  wrasse leases release orders/42 --lease=d5arif5qkajneqfrmsb0
  wrasse leases get orders/42
""",
)
orphans = LazyGroup(
    "orphans",
    {
        "plan": ("orphans", "scan a root, and write what is due with a reason per line"),
        "apply": ("orphans:apply_", "carry out a plan"),
        "arm": ("orphans", "let a root act by itself, or approve a refused scan"),
        "disarm": ("orphans", "let a root only plan"),
        "undo": ("orphans", "restore what a run put into quarantine"),
        "why": ("orphans", "why a key is kept or removed"),
        "list": ("orphans:list_", "roots, or the sightings of one"),
    },
    about="Objects without a reference: find, remove and restore them.",
    examples="""\b
Examples:
  wrasse orphans plan archives --out plan.jsonl
  wrasse orphans arm archives
  wrasse orphans why archives/ws1/op7/home.tar.gz
  wrasse orphans undo 01KD3Z8Q6Y8M5B9W0X2V7T4N1R
""",
)
config = LazyGroup(
    "config",
    {"show": ("config", "every setting, its value and its source"), "check": ("config", "check the configuration")},
    about="Show or check the configuration.",
    examples="""\b
Examples:
  wrasse config show
  wrasse config check --config=production.yaml
""",
)
wrasse = LazyGroup(
    "wrasse",
    {
        "demo": ("demo.tour", "a tour on this machine: jobs, a killed worker, a lease, a dry run; about 20 seconds"),
        "run": ("run", "run workers, sweeps, the archiver and the lease API until stopped"),
        "sweep": ("sweep", "run sweeps once, or show what they would do and why"),
        "jobs": (jobs, "enqueue, list, show, requeue, cancel and purge jobs"),
        "periodic": (periodic, "periodic jobs: last slot and next"),
        "streams": (streams, "publish and read messages, and see the position of each group"),
        "archives": (archives, "list, read and verify archives of streams"),
        "leases": (leases, "acquire, show and release leases on keys, with their state; check all of them"),
        "orphans": (orphans, "find, remove and restore objects without a reference"),
        "journal": ("journal", "the actions of sweeps, when and why"),
        "explain": ("explain", "everything known about a job, a lease or a run, and what happens next"),
        "doctor": ("doctor", "check backends, disk, clock and configuration"),
        "config": (config, "show or check the configuration"),
        "bench": (bench, "measure, in a checkout of the project"),
    },
    about="Keeps job queues, event streams, leases and object storage clean: nothing stays stuck, nothing is lost, "
    "nothing leaks.",
    examples="Start with `wrasse demo`. The settings: `wrasse config show`. The version: `wrasse --version`.",
)


def main(args: list[str] | None = None) -> NoReturn:
    """Runs the command and exits with its code."""
    args = sys.argv[1:] if args is None else args
    if args and args[0] in ("--version", "-V"):
        sys.stdout.write(f"wrasse {__version__}\n")
        sys.exit(0)
    # --debug is recognised anywhere; groups do not accept it, commands do.
    debug = "--debug" in args[: args.index("--") if "--" in args else None]
    sys.exit(_run(args, debug=debug))


def _run(args: list[str], *, debug: bool) -> int:
    try:
        code = wrasse.main(args or ["--help"], prog_name="wrasse", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.exceptions.NoArgsIsHelpError as ctx:
        sys.stdout.write(ctx.format_message() + "\n")
        return 0
    except click.ClickException as why:
        return _say(*_usage(why), code=2)
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", "", code=1)
    except WrasseError as why:
        if debug:
            return _story()
        return _say(why.message, why.do, code=why.exit_code)
    except UnicodeEncodeError as why:
        if debug:
            return _story()
        # Only an argument can cause this: Python represents each byte that is not UTF-8 by a lone surrogate.
        return _say(f"{why.object[:80]!r} is not UTF-8", "write names in UTF-8, or give a payload with --file", code=2)
    except Exception as why:
        if debug:
            return _story()
        hint = "call the command with --debug for the traceback, and report it"
        return _say(f"{type(why).__name__}: {why}", hint, code=1)


def _story() -> int:
    """Writes the traceback, without secrets, which errors of drivers may contain."""
    sys.stderr.write(hide(traceback.format_exc()))
    return 1


def _usage(why: click.ClickException) -> tuple[str, str]:
    message, _, do = why.format_message().partition("\ndo: ")
    if not do:
        ctx = getattr(why, "ctx", None)
        do = f"see `{ctx.command_path} --help`" if ctx is not None else "see `wrasse --help`"
    return message[:1].lower() + message[1:], do


def _say(message: str, do: str, *, code: int) -> int:
    sys.stderr.write(hide(f"error: {message}\n" + (f"do: {do}\n" if do else "")))
    return code
