"""The command line: which commands there are, and how every one of them ends.

A command is loaded when it is called, so that `wrasse --version` and the shell's completion stay quick. Whatever goes
wrong is said in two lines, `error:` and `do:`, on stderr; the whole story is shown with --debug. Exit codes: 0 done,
1 failed, 2 usage, 3 refused for safety.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from typing import NoReturn

import click

from wrasse import __version__
from wrasse.app.redaction import hide
from wrasse.errors import WrasseError


class LazyGroup(click.Group):
    """Commands by name, imported when they are used; a typing error is answered with the nearest name. `homes`: where
    each lives, as module:attribute (the attribute is the name unless it is given), or a group, and one line for the
    list."""

    def __init__(
        self, name: str, homes: Mapping[str, tuple[str | click.Command, str]], *, about: str, examples: str
    ) -> None:
        super().__init__(name, help=about, epilog=examples, no_args_is_help=True)
        self.homes = homes
        self.context_settings = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order a newcomer meets them."""
        return list(self.homes)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command, its module imported now."""
        if name not in self.homes:
            return None
        home = self.homes[name][0]
        if isinstance(home, click.Command):
            return home
        module, _, attribute = home.partition(":")
        command = getattr(importlib.import_module(f"wrasse.app.{module}"), attribute or name)
        assert isinstance(command, click.Command), f"{name} is a command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As usual, but an unknown name is answered with the nearest known one."""
        name = args[0]
        if name not in self.homes and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.homes, n=1, cutoff=0.5)
            hint = f"write {near[0]!r}" if near else f"use one of: {', '.join(self.homes)}"
            raise click.UsageError(f"there is no command {name!r}\ndo: {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """As usual, but a reader of our output who has seen enough is no failure."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Python would complain once more when it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise click.exceptions.Exit(0) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in self.homes.items()])


jobs = LazyGroup(
    "jobs",
    {
        "put": ("cli_jobs_put", "put one job, or one per line"),
        "list": ("cli_jobs:list_jobs", "jobs of a place, page by page"),
        "show": ("cli_jobs", "one job: state, history, payload"),
        "peek": ("cli_jobs", "the jobs that are served next, and how their payloads begin"),
        "stats": ("cli_jobs", "how many jobs are where, and who works"),
        "dead": ("cli_jobs", "dead jobs and why they died"),
        "requeue": ("cli_jobs_change", "make dead jobs ready again"),
        "replay": ("cli_jobs_change", "make many dead jobs ready again, a few first"),
        "cancel": ("cli_jobs_change", "stop jobs that wait or run"),
        "purge": ("cli_jobs_change", "delete finished or waiting jobs for good"),
        "fsck": ("cli_jobs_change", "look for damage in what is kept of jobs, and repair it"),
    },
    about="Put, list, show, requeue, cancel and purge jobs.",
    examples="""\b
Examples:
  wrasse jobs put --kind=resize '{"path": "a.png"}'
  wrasse jobs stats
  wrasse jobs dead --reason=timeout
""",
)
periodic = LazyGroup(
    "periodic",
    {"list": ("cli_periodic:list_periodic", "periodic jobs: their last slot and the next")},
    about="Jobs that are put again and again, by settings or by a program.",
    examples="""\b
Examples:
  wrasse periodic list
  wrasse periodic list --json
""",
)
streams = LazyGroup(
    "streams",
    {
        "publish": ("cli_streams", "publish one message, or one per line"),
        "read": ("cli_streams", "read messages, with a group or without leaving a trace"),
        "info": ("cli_streams", "streams in numbers, and how far each group is"),
    },
    about="Publish and read messages, and see which group is how far.",
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
        "list": ("cli_archives:list_", "archives in order, with what each holds"),
        "read": ("cli_archives:read_", "messages in order, each once"),
        "replay": ("cli_archives:replay_", "publish archived messages into a stream again"),
        "restart": ("cli_archives:restart_", "go on with a stream that was set back"),
        "verify": ("cli_archives:verify_", "prove that no message is missing or twice"),
    },
    about="List archives, read messages back or publish them again, and prove that none is missing or twice.",
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
        "list": ("cli_leases:list_", "keys, and who holds them"),
        "show": ("cli_leases", "everything about a key"),
        "get": ("cli_leases", "the state of a key"),
        "acquire": ("cli_leases_hold", "take the lease of a key"),
        "keep": ("cli_leases_hold", "renew a lease"),
        "update": ("cli_leases_hold", "stage a new state under a lease"),
        "remove": ("cli_leases_hold", "stage the removal of the state under a lease"),
        "release": ("cli_leases_hold", "give a lease back, with a commit of what is staged or without"),
        "attach": ("cli_leases_hold", "stage a file under a lease, to be committed with the state"),
        "detach": ("cli_leases_hold", "stage the removal of a file under a lease"),
        "attachments": ("cli_leases_hold", "the files of a key"),
        "fetch": ("cli_leases_hold", "the bytes of one file of a key"),
        "transaction": ("cli_leases", "what became of several keys that change together, or decide it"),
        "messages": ("cli_leases", "what is in a queue of the lease API, and what is dead there"),
        "fsck": ("cli_leases", "look at every key, object and index entry, and repair what can be"),
    },
    about="Leases on keys, and the state that changes with them.",
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
        "plan": ("cli_orphans", "look at a root, and write what is due with a reason per line"),
        "apply": ("cli_orphans:apply_", "carry out a plan"),
        "arm": ("cli_orphans", "let a root act by itself, or overrule a refusal"),
        "disarm": ("cli_orphans", "let a root only plan"),
        "undo": ("cli_orphans", "bring back what a run took"),
        "why": ("cli_orphans", "what protects or condemns a key"),
        "list": ("cli_orphans:list_", "roots, or what is noted of one"),
    },
    about="Objects that nothing refers to: find them, take them away, bring them back.",
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
    {
        "show": ("cli_config", "every setting, its value and where it came from"),
        "check": ("cli_config", "whether the configuration is right"),
    },
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
        "demo": ("cli_demo", "a tour on this machine: jobs, a killed worker, a lease, a dry run; about 20 seconds"),
        "run": ("cli_run", "run workers, sweeps, the archiver and the lease API until told to stop"),
        "sweep": ("cli_sweep", "run sweeps once, or show what they would do and why"),
        "jobs": (jobs, "put, list, show, requeue, cancel and purge jobs"),
        "periodic": (periodic, "jobs that are put again and again: last slot and next"),
        "streams": (streams, "publish and read messages, and see who is how far"),
        "archives": (archives, "list, read and verify what was archived of streams"),
        "leases": (leases, "take, show and give back leases on keys, with their state; check all of them"),
        "orphans": (orphans, "find, take away and bring back objects that nothing refers to"),
        "journal": ("cli_journal", "what sweeps did, when and why"),
        "explain": ("cli_explain", "everything known about a job, a lease or a run, and what happens next"),
        "doctor": ("cli_doctor", "check backends, disk, clock and configuration"),
        "config": (config, "show or check the configuration"),
        "bench": ("cli_bench", "measure, in a checkout of the project"),
    },
    about="Keeps job queues, event streams, leases and object storage clean: nothing stays stuck, nothing is lost, "
    "nothing leaks.",
    examples="Start with `wrasse demo`. What is set: `wrasse config show`. The version: `wrasse --version`.",
)


def main(args: list[str] | None = None) -> NoReturn:
    """Runs the command and leaves the process with its exit code."""
    args = sys.argv[1:] if args is None else args
    if args and args[0] in ("--version", "-V"):
        sys.stdout.write(f"wrasse {__version__}\n")
        sys.exit(0)
    # Wherever it stands, --debug means the same; groups do not take it, commands do.
    debug = "--debug" in args[: args.index("--") if "--" in args else None]
    sys.exit(_run(args, debug=debug))


def _run(args: list[str], *, debug: bool) -> int:
    try:
        code = wrasse.main(args or ["--help"], prog_name="wrasse", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.exceptions.NoArgsIsHelpError as asked:
        sys.stdout.write(asked.format_message() + "\n")
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
        # Only an argument can be such a text: Python stands half a pair for each byte that is no UTF-8.
        return _say(f"{why.object[:80]!r} is not UTF-8", "write names in UTF-8, or give a payload with --file", code=2)
    except Exception as why:
        if debug:
            return _story()
        hint = "call the command with --debug for the whole story, and report it"
        return _say(f"{type(why).__name__}: {why}", hint, code=1)


def _story() -> int:
    """The traceback, without secrets: values that a driver puts into its errors stand in it, too."""
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
