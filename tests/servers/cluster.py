"""A Redis Cluster on loopback: three masters that share the slots, each with a replica if asked for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import redis

from servers.process import START_MAX_S, free_ports
from servers.valkey import Valkey, valkey

SLOTS = 16_384
MASTERS = 3


@dataclass(frozen=True)
class Cluster:
    """The nodes, masters first."""

    nodes: tuple[Valkey, ...]

    @property
    def masters(self) -> tuple[Valkey, ...]:
        return self.nodes[:MASTERS]

    @property
    def url(self) -> str:
        return f"redis://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}/0?cluster=true"

    def client(self, node: Valkey) -> redis.Redis:
        return redis.Redis(port=node.port, decode_responses=True)

    def id_of(self, node: Valkey) -> str:
        with self.client(node) as client:
            return str(client.execute_command("CLUSTER MYID"))

    def owner(self, slot: int) -> Valkey:
        """The master that serves the slot, as the first node sees it."""
        with self.client(self.nodes[0]) as client:
            ranges = client.execute_command("CLUSTER SLOTS")
        ports = [int(master[1]) for first, last, master, *_ in ranges if first <= slot <= last]
        return next(node for node in self.nodes if node.port == ports[0])

    def move_begins(self, slot: int, to: Valkey) -> None:
        """The slot is on the move: keys that are not there any more are asked for at the new node."""
        source = self.owner(slot)
        with self.client(to) as client:
            client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", self.id_of(source))
        with self.client(source) as client:
            client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", self.id_of(to))

    def move_keys(self, slot: int, to: Valkey, count: int = 1_000_000) -> None:
        """Moves keys of the slot, at most so many."""
        with self.client(self.owner(slot)) as client:
            keys = client.execute_command("CLUSTER GETKEYSINSLOT", slot, count)
            if keys:
                client.execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 5_000, "KEYS", *keys)

    def move_ends(self, slot: int, to: Valkey, told: Sequence[Valkey] = ()) -> None:
        """From now on the new node serves the slot. The others hear of it from each other, or are `told` at once."""
        for node in (to, *(each for each in told or self.masters if each is not to)):
            with self.client(node) as client:
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", self.id_of(to))

    def move(self, slot: int, to: Valkey) -> None:
        """Moves a slot with all its keys."""
        self.move_begins(slot, to)
        self.move_keys(slot, to)
        self.move_ends(slot, to)


@contextlib.contextmanager
def cluster(*, replicas: bool = False, durable: bool = False, silence_ms: int = 2_000) -> Iterator[Cluster]:
    """A cluster that serves every slot. A master that is silent for `silence_ms` is followed by its replica."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", silence_ms)
    with contextlib.ExitStack() as stack:
        # The nodes talk to each other on a port of its own, by default 10,000 above, which may be none.
        buses = free_ports(MASTERS * (2 if replicas else 1))
        nodes = [stack.enter_context(valkey(*options, "--cluster-port", bus, durable=durable)) for bus in buses]
        made = Cluster(tuple(nodes))
        with made.client(nodes[0]) as first:
            for node, bus in zip(nodes[1:], buses[1:], strict=True):
                first.execute_command("CLUSTER MEET", "127.0.0.1", node.port, bus)
        share = SLOTS // MASTERS
        for number, node in enumerate(made.masters):
            last = SLOTS - 1 if number == MASTERS - 1 else (number + 1) * share - 1
            with made.client(node) as client:
                client.execute_command("CLUSTER ADDSLOTS", *range(number * share, last + 1))
        _wait("every node knows the others", lambda: all(_known(made, node) == len(nodes) for node in nodes))
        for master, replica in zip(made.masters, nodes[MASTERS:], strict=False):
            with made.client(replica) as client:
                client.execute_command("CLUSTER REPLICATE", made.id_of(master))
        _wait("every slot is served", lambda: all(_well(made, node) for node in nodes))
        _wait("every replica has its master's data", lambda: all(_synced(made, node) for node in nodes[MASTERS:]))
        yield made


class _Shared:
    """One cluster that all tests of a process use, started by the first that asks for it."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._cluster: Cluster | None = None

    def get(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self._stack.enter_context(cluster())
        return self._cluster

    def stop(self) -> None:
        self._cluster = None
        self._stack.close()


SHARED_CLUSTER = _Shared()


def _wait(what: str, reached: Callable[[], bool]) -> None:
    end = time.monotonic() + START_MAX_S
    while not reached():
        if time.monotonic() > end:
            raise TimeoutError(f"it never came to be that {what}")
        time.sleep(0.02)


def _known(made: Cluster, node: Valkey) -> int:
    with made.client(node) as client:
        return len(client.execute_command("CLUSTER NODES"))


def _well(made: Cluster, node: Valkey) -> bool:
    with made.client(node) as client:
        info = client.execute_command("CLUSTER INFO")
        return bool(info["cluster_state"] == "ok" and info["cluster_slots_ok"] == str(SLOTS))


def _synced(made: Cluster, node: Valkey) -> bool:
    with made.client(node) as client:
        return bool(client.info("replication").get("master_link_status") == "up")
