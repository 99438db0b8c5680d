"""What code must not do: ask the system for the time, print, swallow errors, leave notes, drop assertions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tools.tidy.source import Problem, Source

CLOCK_CALLS = frozenset(
    {
        "time.time",
        "time.time_ns",
        "time.monotonic",
        "time.monotonic_ns",
        "time.perf_counter",
        "time.perf_counter_ns",
        "time.sleep",
        "time.localtime",
        "time.gmtime",
        "time.ctime",
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "datetime.datetime.today",
        "datetime.date.today",
    }
)
SQL_CLOCK = re.compile(
    r"\bCURRENT_(?:TIMESTAMP|DATE|TIME)\b|\bunixepoch\(\s*\)"
    r"|\b(?:datetime|date|time|julianday|strftime|unixepoch)\([^)]*'now'"
)
# Where the event loop's own clock is read, each with the reason.
LOOP_TIME: dict[str, str] = {
    "backends/s3/transport.py": "adds up the waits of one request by the clock of asyncio.timeout, which ends them",
}
# Where a task is started outside a TaskGroup, each with how it is awaited.
LONE_TASKS = {
    "web/listener.py": "accepts connections beside everything else; closing cancels and awaits it, and handshakes",
    "runtime/daemon.py": "an attempt to open a backend ends with it or with the process, and is awaited",
    "backends/redis/groups.py": "a question whose asker was cancelled is awaited, and what it brought is given back",
    "backends/nats/groups.py": "questions to several durables are cancelled when one answers, and gathered",
    "backends/nats/group_cursors.py": "shows how far groups are beside everything else; closing awaits it",
    "backends/redis/jobs/queue.py": "the listener for wake-ups ends when nobody waits; closing awaits it",
    "api/sync.py": "the stand-in for a hold's body lives until the thread leaves the hold, which awaits it",
    "leases/transactions/manager.py": "one replay at a time; `finished`, which closing awaits, waits for it",
    "leases/cleanup.py": "what is done after an answer; `finished`, which every owner awaits, waits for all of it",
    "jobs/record_core/claims.py": "a claim goes on when its asker is cancelled, and is awaited",
    "jobs/stream_tasks/queue.py": "waits for several streams are gathered",
    "jobs/record_queue/store.py": "what is done after an answer; `finished`, which closing awaits, waits for all of it",
    "jobs/producer.py": "a piece that was sent is awaited before the next one, or at the end",
    "leases/lease_scope.py": "the keeper of a lease lives as long as the `async with` around it, whose end awaits it",
}
NOTES = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
WITHOUT_ASSERTS = re.compile(r"python[0-9.]*[\"', ]+-O+\b|PYTHON" + r"OPTIMIZE")


def only_the_clock_asks_for_the_time(source: Source) -> Iterator[Problem]:
    """Decisions get `at`, everything else a Clock; waiting is asyncio's."""
    if not source.module or source.module == "clock.py":
        return
    for number, text in enumerate(source.text.splitlines(), 1):
        if SQL_CLOCK.search(text):
            yield Problem(
                source.path, number, "SQL asks its own clock", "bind the instant that the injected Clock gave"
            )
    if not source.python:
        return
    known = _names(source.tree)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute | ast.Name) and (name := _dotted(node, known)) in CLOCK_CALLS:
            yield Problem(
                source.path,
                node.lineno,
                f"{name} outside clock.py",
                "take a Clock as parameter, or `at` from the backend",
            )
        if isinstance(node, ast.Call) and _is_loop_time(node, known) and source.module not in LOOP_TIME:
            yield Problem(
                source.path,
                node.lineno,
                "reads the event loop's clock",
                "take a Clock, or list the file in tools/tidy/conduct.py with the reason",
            )


def _names(tree: ast.Module) -> dict[str, str]:
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                known[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return known


def _dotted(node: ast.expr, known: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return known.get(node.id, "")
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, known)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _is_loop_time(node: ast.Call, known: dict[str, str]) -> bool:
    target = node.func
    return isinstance(target, ast.Attribute) and target.attr == "time" and not node.args and not _dotted(target, known)


def nothing_is_printed(source: Source) -> Iterator[Problem]:
    """The package writes through click, or logs."""
    if not source.module or not source.python:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield Problem(source.path, node.lineno, "print()", "use click.echo in a command, a log line elsewhere")


def errors_are_not_swallowed(source: Source) -> Iterator[Problem]:
    """No bare `except:`, and nothing that catches everything and does nothing."""
    if not source.python:
        return
    do = "name the error you expect; return, raise or count it"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield Problem(source.path, node.lineno, "a bare except", do)
            elif _catches_all(node.type) and all(
                isinstance(s, ast.Pass | ast.Continue) or _is_ellipsis(s) for s in node.body
            ):
                yield Problem(source.path, node.lineno, "catches everything and does nothing", do)
        elif isinstance(node, ast.Call) and _called(node) == "suppress" and any(map(_catches_all, node.args)):
            yield Problem(source.path, node.lineno, "suppresses everything", do)


def _called(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def _catches_all(kind: ast.expr) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(k, ast.Name) and k.id in ("Exception", "BaseException") for k in kinds)


def _is_ellipsis(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def tasks_have_an_owner(source: Source) -> Iterator[Problem]:
    """Every task lives in a TaskGroup, or is listed with how it is awaited."""
    if not source.module or not source.python or source.module in LONE_TASKS:
        return
    known = _names(source.tree)
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        on_loop = _called(node) == "create_task" and "loop" in ast.unparse(node.func).lower()
        if on_loop or _dotted(node.func, known) in ("asyncio.create_task", "asyncio.ensure_future"):
            yield Problem(
                source.path,
                node.lineno,
                "a task outside a TaskGroup",
                "start it in a TaskGroup, or list the file in tools/tidy/conduct.py with how it is awaited",
            )


def no_notes_are_left(source: Source) -> Iterator[Problem]:
    """What is to be done is an issue, not a comment."""
    if source.path.endswith(".lock"):
        return
    for number, text in enumerate(source.text.splitlines(), 1):
        if found := NOTES.search(text):
            yield Problem(source.path, number, f"a {found[0]} note", "do it, or open an issue")


def assertions_stay_on(source: Source) -> Iterator[Problem]:
    """No `-O`: an assertion that fails stops the process, and a restart is safe."""
    if source.path.endswith((".md", ".lock")):
        return
    for number, text in enumerate(source.text.splitlines(), 1):
        if WITHOUT_ASSERTS.search(text):
            yield Problem(source.path, number, "turns assertions off", "run python as it is")
