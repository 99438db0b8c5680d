"""Who may import whom: nothing points upwards or sideways.

cli, api -> runtime -> sweeps -> engine -> leases -> ports -> clock, errors, duration, ids, breaker, bounded, ...
                           |-> jobs, streams, archives, orphans -> ports
runtime -> web, lease_server -> observability -> config
runtime -> backends -> ports                 (backends never see domains, domains never backends)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tools.tidy.source import Problem, Source

ROOTS = frozenset({"clock", "errors", "duration", "ids", "breaker", "bounded", "private_files", "threads"})
LOW = ROOTS | {"ports"}
DOMAINS = LOW | {"engine", "leases", "jobs", "streams", "archives", "orphans", "sweeps"}
MAY_IMPORT: dict[str, frozenset[str]] = {
    **dict.fromkeys(ROOTS, ROOTS),
    "ports": ROOTS,
    "leases": LOW,
    "jobs": LOW,
    "streams": LOW,
    "archives": LOW | {"streams", "leases"},
    "orphans": LOW,
    "engine": LOW | {"leases"},
    "sweeps": LOW | {"engine", "leases", "jobs", "streams", "archives", "orphans"},
    "backends": LOW,
    # The edges of a process: config says what is wanted, runtime builds it, api, cli, web and lease_server offer it.
    "config": LOW | {"engine", "leases", "jobs", "archives", "orphans", "sweeps", "observability", "backends"},
    "observability": DOMAINS | {"config", "__version__"},
    "web": DOMAINS | {"config", "observability", "runtime", "__version__"},
    "lease_server": DOMAINS | {"config", "observability", "web", "__version__"},
    "runtime": DOMAINS | {"api", "config", "observability", "web", "lease_server", "backends", "__version__"},
    "api": DOMAINS | {"config", "runtime", "observability", "__version__"},
    "cli": DOMAINS | {"api", "config", "runtime", "observability", "lease_server", "web", "__version__"},
    "testing": LOW | {"engine", "api", "config", "backends"},
    "__init__": LOW | {"api", "config", "jobs", "leases", "engine", "sweeps"},
    "__main__": frozenset({"cli"}),
}
# How a server is named: plain values, with which no backend comes.
ADDRESSES = frozenset({"backends.redis.options", "backends.nats.options", "backends.s3.address"})
SEES_ADDRESSES = frozenset({"config", "runtime"})
EXCEPTIONS = frozenset({("runtime/producer.py", "wrasse.cli.output")})  # the bar that shows how many files are done
CHOOSES_BACKENDS = frozenset({"runtime/backends.py", "testing/world.py"})  # a test's world is in memory, and says so


def imported(source: Source) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "." * node.level + (node.module or "")
            elif node.module == "wrasse":
                yield from ((node.lineno, f"wrasse.{alias.name}") for alias in node.names)
            elif node.module:
                yield node.lineno, node.module


def imports_point_downwards(source: Source) -> Iterator[Problem]:
    """The import table."""
    if not source.python or not source.module:
        return
    here = source.module.removesuffix(".py").split("/")
    for line, name in imported(source):
        if name.startswith("."):
            yield Problem(source.path, line, "a relative import", "write the whole name: from wrasse.…")
            continue
        if not name.startswith("wrasse."):
            continue
        there = name.split(".")[1:]
        may = MAY_IMPORT.get(here[0], frozenset())
        if there[0] != here[0] and there[0] not in may and (source.module, name) not in EXCEPTIONS:
            yield Problem(
                source.path,
                line,
                f"{here[0]} imports {name}",
                f"{here[0]} may import {', '.join(sorted(MAY_IMPORT.get(here[0], frozenset()))) or 'nothing of ours'}; "
                "pass what is needed as a value or through a port",
            )
        elif there[0] == "backends" and not _may_see_backend(source.module, here, there):
            yield Problem(
                source.path,
                line,
                f"{source.module} imports {name}",
                "ask runtime/backends.py for the port: it alone chooses backends, and one backend never sees another",
            )


def _may_see_backend(module: str, here: list[str], there: list[str]) -> bool:
    if here[0] == "backends":
        # No backends: `wakeup` is what those share in which takers wait, `record_files` directory and S3, the
        # others what clients of servers share.
        shared = ("wakeup", "record_files", "foreign_protocol", "page_loop", "tcp", "url_query")
        return len(there) > 1 and len(here) > 1 and there[1] in (here[1], *shared)
    return module in CHOOSES_BACKENDS or (here[0] in SEES_ADDRESSES and ".".join(there) in ADDRESSES)
