"""Finds the server to connect to: the address itself, the master that the sentinels name, or the Cluster node of our
slot.

It is determined for each new connection and never cached beyond it: after a lost connection, or a redirect, it is
determined again.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from wrasse.backends.redis.client.transport import RedisRefusal, RedisTransport, dial, pack
from wrasse.backends.redis.failure import ours
from wrasse.backends.redis.options import SLOTS, RedisOptions
from wrasse.backends.tcp import Address, ConnectionLost
from wrasse.errors import Refused, StoreUnavailable

_NODES_MAX = 64  # of a cluster, that are tried when one is down
_REPLICAS_MAX = 64  # of a range of slots
_UNREADABLE = "its answer about which server serves our keys cannot be read"
FAILURES = (OSError, ssl.SSLError, TimeoutError, ConnectionLost, RedisRefusal)


class ServerRoute:
    """Connects to the one server that serves our keys now."""

    __slots__ = ("_changed", "_known", "_options", "_told", "_watch")

    def __init__(self, options: RedisOptions, changed: Callable[[], None]) -> None:
        self._options = options
        self._changed = changed
        self._watch: RedisTransport | None = None  # a sentinel that announces a new master
        self._known: tuple[Address, ...] = options.nodes  # those that answered last come first
        self._told: Address | None = None

    def moved(self, address: Address) -> None:
        """A node redirected to this address."""
        self._told = address

    def close(self) -> None:
        """Ends the connection to the sentinel."""
        if self._watch is not None:
            self._watch.heard = None
            self._watch.end("the client was closed")
            self._watch = None

    async def connect(self) -> RedisTransport:
        """A connection to the server that serves our keys now, or our error."""
        if self._told is not None:
            address, self._told = self._told, None
            try:
                return await dial(*address, self._options)
            except FAILURES:
                pass  # that server is down again: try the others
        if not self._options.sentinel and not self._options.cluster:
            return await self._first()
        last: Exception = StoreUnavailable(f"{self._options.where} is nowhere", do="check redis.addr")
        for node in self._known:
            try:
                found = await self._ask(node)
                wire = await dial(*found, self._options, master=bool(self._options.sentinel))
            except FAILURES as error:
                last = error
                continue
            self._known = (node, *(each for each in self._known if each != node))
            return wire
        raise ours(last, self._options.where) from last

    async def _first(self) -> RedisTransport:
        last: Exception | None = None
        for node in self._known:
            try:
                return await dial(*node, self._options)
            except FAILURES as error:
                last = error
        assert last is not None, "there is at least one address"
        raise ours(last, self._options.where) from last

    async def _ask(self, node: Address) -> Address:
        """The server of our keys, according to one sentinel or one node of the cluster."""
        options = self._options
        wire = await dial(*node, options, sentinel=bool(options.sentinel))
        try:
            if not options.sentinel:
                return self._of_slot(await wire.ask(pack(("CLUSTER", "SLOTS"))), node)
            if self._watch is None or not self._watch.open:
                await self._listen(wire)
                wire = await dial(*node, options, sentinel=True)
            return self._master(await wire.ask(pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", options.sentinel))))
        finally:
            wire.end("its question was answered")

    async def _listen(self, wire: RedisTransport) -> None:
        """Subscribes to failovers: the old master accepts writes for seconds more, and they would be lost. Before the
        master is looked up, so that no change falls between the two."""
        name = self._options.sentinel.encode() + b" "

        def heard(message: object) -> None:
            match message:
                case None:
                    self._changed()
                case [_, _, bytes(told)] if told.startswith(name):
                    self._changed()

        self._watch = wire
        await wire.ask(pack(("SUBSCRIBE", "+switch-master")))
        wire.heard = heard

    def _master(self, answer: object) -> Address:
        if answer is None:
            raise Refused(f"the sentinels know no master {self._options.sentinel!r}", do="correct redis.sentinel")
        match answer:
            case [bytes(host), bytes(port)] if _is_port(text := port.decode("ascii", "replace")):
                return host.decode("utf-8", "replace"), int(text)
        raise ConnectionLost(_UNREADABLE)

    def _of_slot(self, ranges: object, asked: Address) -> Address:
        found: Address | None = None
        nodes: list[Address] = []
        if not isinstance(ranges, list) or len(ranges) > SLOTS:
            raise ConnectionLost(_UNREADABLE)
        for each in ranges:
            match each:
                case [int(first), int(last), _, *_]:
                    addresses = [_address(node, asked) for node in each[2 : 2 + _REPLICAS_MAX]]
                case _:
                    raise ConnectionLost(_UNREADABLE)
            nodes += [node for node in addresses if node not in nodes and len(nodes) < _NODES_MAX]
            if first <= self._options.slot <= last:
                found = addresses[0]
        if found is None:
            raise RedisRefusal("CLUSTERDOWN no node serves the slot")
        # Every node can be tried the next time, and the configured ones stay: the others may all be replaced.
        self._known = (asked, *dict.fromkeys(each for each in (*nodes, *self._options.nodes) if each != asked))
        return found


def _address(node: object, asked: Address) -> Address:
    """A node of CLUSTER SLOTS. A node that does not know its own address is the one that answered."""
    if not isinstance(node, list) or len(node) < 2 or not _is_port(str(node[1])):
        raise ConnectionLost(_UNREADABLE)
    host = node[0].decode("utf-8", "replace") if isinstance(node[0], bytes) else ""
    return (host if host not in ("", "?") else asked[0]), int(node[1])


def redirected(refusal: RedisRefusal, asked: str) -> Address | None:
    """The target of a MOVED or ASK, or None if it has none. An empty host is the one that answered."""
    words = str(refusal).split()
    host, _, port = words[2].rpartition(":") if len(words) > 2 else ("", "", "")
    return (host or asked, int(port)) if _is_port(port) else None


def _is_port(port: str) -> bool:
    return port.isascii() and port.isdecimal() and len(port) <= 5 and 1 <= int(port) <= 65_535
