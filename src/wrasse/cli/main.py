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
from wrasse.config.redaction import hide
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
        command = getattr(importlib.import_module(f"wrasse.cli.{module}"), attribute or name)
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
        "enqueue": ("jobs.enqueue", "enqueue one job, or one per line"),
        "list": ("jobs.inspect:list_jobs", "jobs of a place, page by page"),
        "show": ("jobs.inspect", "one job: state, history, payload"),
        "peek": ("jobs.inspect", "the jobs that are served next, and how their payloads begin"),
        "stats": ("jobs.inspect", "how many jobs are where, and who works"),
        "dead": ("jobs.inspect", "dead jobs and why they died"),
        "requeue": ("jobs.change", "make dead jobs ready again"),
        "replay": ("jobs.change", "make many dead jobs ready again, a few first"),
        "cancel": ("jobs.change", "stop jobs that wait or run"),
        "purge": ("jobs.change", "delete finished or waiting jobs for good"),
        "fsck": ("jobs.change", "look for damage in what is kept of jobs, and repair it"),
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
        "publish": ("streams", "publish one message, or one per line"),
        "read": ("streams", "read messages, with a group or without leaving a trace"),
        "info": ("streams", "streams in numbers, and how far each group is"),
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
        "list": ("archives:list_", "archives in order, with what each holds"),
        "read": ("archives:read_", "messages in order, each once"),
        "replay": ("archives:replay_", "publish archived messages into a stream again"),
        "restart": ("archives:restart_", "go on with a stream that was set back"),
        "verify": ("archives:verify_", "prove that no message is missing or twice"),
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
        "list": ("leases.inspect:list_", "keys, and who holds them"),
        "show": ("leases.inspect", "everything about a key"),
        "get": ("leases.inspect", "the state of a key"),
        "acquire": ("leases.change", "take the lease of a key"),
        "keep": ("leases.change", "renew a lease"),
        "update": ("leases.change", "stage a new state under a lease"),
        "remove": ("leases.change", "stage the removal of the state under a lease"),
        "release": ("leases.change", "give a lease back, with a commit of what is staged or without"),
        "attach": ("leases.change", "stage a file under a lease, to be committed with the state"),
        "detach": ("leases.change", "stage the removal of a file under a lease"),
        "attachments": ("leases.change", "the files of a key"),
        "fetch": ("leases.change", "the bytes of one file of a key"),
        "transaction": ("leases.inspect", "what became of several keys that change together, or decide it"),
        "messages": ("leases.inspect", "what is in a queue of the lease API, and what is dead there"),
        "fsck": ("leases.inspect", "look at every key, object and index entry, and repair what can be"),
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
        "plan": ("orphans.commands", "look at a root, and write what is due with a reason per line"),
        "apply": ("orphans.commands:apply_", "carry out a plan"),
        "arm": ("orphans.commands", "let a root act by itself, or overrule a refusal"),
        "disarm": ("orphans.commands", "let a root only plan"),
        "undo": ("orphans.commands", "bring back what a run took"),
        "why": ("orphans.commands", "what protects or condemns a key"),
        "list": ("orphans.commands:list_", "roots, or what is noted of one"),
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
        "show": ("config", "every setting, its value and where it came from"),
        "check": ("config", "whether the configuration is right"),
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
        "demo": ("demo.command", "a tour on this machine: jobs, a killed worker, a lease, a dry run; about 20 seconds"),
        "run": ("run", "run workers, sweeps, the archiver and the lease API until told to stop"),
        "sweep": ("sweep", "run sweeps once, or show what they would do and why"),
        "jobs": (jobs, "enqueue, list, show, requeue, cancel and purge jobs"),
        "periodic": (periodic, "jobs that are put again and again: last slot and next"),
        "streams": (streams, "publish and read messages, and see who is how far"),
        "archives": (archives, "list, read and verify what was archived of streams"),
        "leases": (leases, "take, show and give back leases on keys, with their state; check all of them"),
        "orphans": (orphans, "find, take away and bring back objects that nothing refers to"),
        "journal": ("journal", "what sweeps did, when and why"),
        "explain": ("explain", "everything known about a job, a lease or a run, and what happens next"),
        "doctor": ("doctor", "check backends, disk, clock and configuration"),
        "config": (config, "show or check the configuration"),
        "bench": ("bench", "measure, in a checkout of the project"),
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
