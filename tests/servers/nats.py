"""NATS with JetStream on disk: alone, with logins and certificates of your choice, or three as a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servers.process import START_MAX_S, ServerProcess, folder, free_ports


class Nats(ServerProcess):
    """A server and its address."""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"


@contextlib.contextmanager
def nats(config: str = "", binary: Path | None = None) -> Iterator[Nats]:
    """A server of its own; `config` is in the language of its settings file."""
    with folder() as place:
        (port,) = free_ports(1)
        file = place / "nats.conf"
        file.write_text(config)
        options = ("-a", "127.0.0.1", "-p", port, "-js", "-sd", place / "js", "-c", file)
        server = Nats([binary or newest_nats(), *options], port, place)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@dataclass(frozen=True)
class NatsCluster:
    """Three servers that share what they keep."""

    nodes: tuple[Nats, ...]
    monitors: tuple[int, ...]

    @property
    def url(self) -> str:
        return "nats://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def leader(self, stream: str) -> Nats | None:
        """Who leads a stream, by what the servers that run say of themselves."""
        for monitor in self.monitors:
            with contextlib.suppress(OSError):
                for account in _monitored(monitor, "jsz?streams=1&accounts=1").get("account_details", ()):
                    for each in account.get("stream_detail", ()):
                        if each["name"] == stream and each.get("cluster", {}).get("leader"):
                            return self.nodes[int(each["cluster"]["leader"][1:])]
        return None

    def whole(self) -> bool:
        """Whether every stream has a leader, and every copy all that its leader has."""
        try:
            for number, monitor in enumerate(self.monitors):
                for account in _monitored(monitor, "jsz?streams=1&accounts=1").get("account_details", ()):
                    for each in account.get("stream_detail", ()):
                        known = each.get("cluster", {})
                        leads = known.get("leader") == f"n{number}"  # only a leader knows how far the others are
                        behind = leads and not all(one.get("current") for one in known.get("replicas", ()))
                        if behind or not known.get("leader"):
                            return False
        except OSError:
            return False
        return self.elected()

    def elected(self) -> bool:
        """Whether every server knows the leader of all."""
        try:
            return all(_monitored(port, "jsz").get("meta_cluster", {}).get("leader") for port in self.monitors)
        except OSError:
            return False


@contextlib.contextmanager
def nats_cluster(binary: Path | None = None) -> Iterator[NatsCluster]:
    """Three servers, ready to keep streams in three copies."""
    with contextlib.ExitStack() as stack:
        ports, routes, monitors = free_ports(3), free_ports(3), free_ports(3)
        near = ", ".join(f"nats://127.0.0.1:{route}" for route in routes)
        nodes = []
        for number in range(3):
            place = stack.enter_context(folder())
            file = place / "nats.conf"
            file.write_text(
                f"listen: 127.0.0.1:{ports[number]}\nserver_name: n{number}\nhttp: 127.0.0.1:{monitors[number]}\n"
                f"jetstream {{ store_dir: '{place}/js' }}\n"
                f"cluster {{ name: test, listen: 127.0.0.1:{routes[number]}, routes: [{near}] }}\n"
            )
            node = Nats([binary or newest_nats(), "-c", file], ports[number], place)
            stack.callback(node.kill)
            node.start()
            nodes.append(node)
        made = NatsCluster(tuple(nodes), tuple(monitors))
        end = time.monotonic() + START_MAX_S
        while not made.elected():
            if time.monotonic() > end:
                raise TimeoutError("the servers never agreed on a leader")
            time.sleep(0.05)
        yield made


@contextlib.contextmanager
def nats_leaf() -> Iterator[tuple[Nats, Nats]]:
    """A server whose JetStream has the domain `hub`, and one without that reaches it as a leaf."""
    with contextlib.ExitStack() as stack:
        (near,) = free_ports(1)
        hub = stack.enter_context(nats(f"jetstream {{ domain: hub }}\nleafnodes {{ listen: 127.0.0.1:{near} }}\n"))
        place = stack.enter_context(folder())
        (port,) = free_ports(1)
        file = place / "nats.conf"
        file.write_text(
            f"listen: 127.0.0.1:{port}\nserver_name: leaf\n"
            f"leafnodes {{ remotes: [ {{ url: 'nats-leaf://127.0.0.1:{near}' }} ] }}\n"
        )
        leaf = Nats([newest_nats(), "-c", file], port, place)
        stack.callback(leaf.stop)
        leaf.start()
        yield hub, leaf


def newest_nats() -> Path:
    """The server binary most tests run on."""
    return Path(os.environ.get("WRASSE_TEST_NATS_SERVER") or Path(sys.executable).parent / "nats-server")


def _monitored(port: int, path: str) -> dict[str, object]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=2) as answer:
        return json.load(answer)


class _Shared:
    """Servers that all tests of a process use, by binary: each started by the first that asks. Never restart one."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._servers: dict[Path, Nats] = {}

    def get(self) -> Nats:
        return self.at(newest_nats())

    def at(self, binary: Path) -> Nats:
        if binary not in self._servers:
            roomy = nats("max_payload: 40MB\n", binary)  # an entry may have 24 MiB
            self._servers[binary] = self._stack.enter_context(roomy)
        return self._servers[binary]

    def stop(self) -> None:
        self._servers.clear()
        self._stack.close()


SHARED_NATS = _Shared()
