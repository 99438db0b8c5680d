"""Who may import whom: nothing points upwards or sideways.

cli, api -> runtime -> sweeps -> engine -> leases -> ports -> clock, errors, duration, ids, breaker, bounded, ...
                           |-> jobs, streams, archives, orphans -> ports
runtime -> web, lease_server -> observability -> config
runtime -> backends -> ports                 (backends never see domains, domains never backends)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tools.tidy.source import Problem, Project, Source

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
    "config": LOW,
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
# How a server is named: plain values, with which no backend comes. For config and runtime.
ADDRESSES = frozenset({"backends.redis.options", "backends.nats.options", "backends.s3.address"})
# What config may see of domains, each with the reason: values that settings are read into, and how people write them.
# Whatever runs is built in runtime.
VALUES_OF_SETTINGS = {
    "archives.rule": "prefixes of archives, and whether two overlap",
    "engine.run": "the type of a sweep, for sweeps of one's own",
    "jobs.file_producer.files": "patterns of paths",
    "jobs.handler_name": "module:name and URLs, as handlers and sweeps are named",
    "jobs.new_job": "the data of a periodic job as a payload",
    "jobs.periodic": "cron expressions and intervals",
    "jobs.stream_tasks.fields": "names of types of stream tasks",
    "jobs.worker.queue_selector": "rates and weights of queues",
    "leases.names": "names of namespaces",
    "observability.tracing": "the address of a receiver of spans",
    "orphans.root": "roots, templates of keys and graces",
    "sweeps": "the catalogue: the fields of a sweep are its settings",
}
EXCEPTIONS = frozenset({("runtime/producer.py", "wrasse.cli.output")})  # the bar that shows how many files are done
CHOOSES_BACKENDS = frozenset(
    {"runtime/backends.py", "testing/properties.py"}
)  # a test's world is in memory, and says so


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
        if here[0] == "config" and ".".join(there) in ADDRESSES | VALUES_OF_SETTINGS.keys():
            continue
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


def imports_have_no_cycles(project: Project) -> Iterator[Problem]:
    """No module imports itself by way of others, imports inside functions included; those for types alone are not."""
    sources = {_dotted(source): source for source in project.python if source.module}
    graph = {name: _modules_imported(source, name, sources) for name, source in sources.items()}
    for cycle in _cycles(graph):
        first = min(cycle)
        yield Problem(
            sources[first].path,
            0,
            f"an import cycle: {', '.join(sorted(cycle))}",
            "move what both need below both, or pass it as a value",
        )


def _dotted(source: Source) -> str:
    return "wrasse." + source.module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _modules_imported(source: Source, name: str, sources: dict[str, Source]) -> set[str]:
    found: set[str] = set()
    waiting: list[ast.AST] = [source.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {each if each in sources else node.module for each in inner}
        waiting.extend(ast.iter_child_nodes(node))
    return {each for each in found if each in sources and each != name}


def _cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Modules that reach each other: what is on a cycle stays when everything that ends somewhere is taken away."""
    reached = {name: _reach(graph, name) for name in graph}
    groups: list[set[str]] = []
    for name in graph:
        if name in reached[name] and not any(name in group for group in groups):
            groups.append({other for other in reached[name] if name in reached[other]})
    return groups


def _reach(graph: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(graph[name])
    return reached


def _may_see_backend(module: str, here: list[str], there: list[str]) -> bool:
    if here[0] == "backends":
        # No backends: `wakeup` is what those share in which takers wait, `record_files` directory and S3, the
        # others what clients of servers share.
        shared = ("wakeup", "record_files", "foreign_protocol", "page_loop", "tcp", "url_query")
        return len(there) > 1 and len(here) > 1 and there[1] in (here[1], *shared)
    return module in CHOOSES_BACKENDS or (here[0] == "runtime" and ".".join(there) in ADDRESSES)
