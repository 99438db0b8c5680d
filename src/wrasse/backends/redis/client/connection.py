"""Our client of one Redis: reads, scripts and blocking commands; reconnects after a restart or a failover.

A script is sent once. If its answer is lost, `StoreUnavailable` is raised, and the caller asks again under the same
request id: only the script knows whether it was executed. A server that refuses (wrong node, unknown script, migrating
slot) has executed nothing, so such a refusal is followed at once. Reads may be repeated.

`ServerRoute` finds the server to connect to: the address itself, the master that the sentinels name, or the Cluster
node of our slot. It is determined for each new connection and never cached beyond it: after a lost connection, or a
redirect, it is determined again.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import RedisRefusal, RedisTransport, Word, dial, pack
from wrasse.backends.redis.failure import NotInTime, ReplyTooLarge, keys_of, ours
from wrasse.backends.redis.options import SLOTS, RedisOptions
from wrasse.backends.redis.scripts import Script
from wrasse.backends.tcp import Address, Connecting, ConnectionLost
from wrasse.clock import Clock
from wrasse.errors import ConfigError, Refused, StoreUnavailable

_NODES_MAX = 64  # of a cluster, that are tried when one is down
_REPLICAS_MAX = 64  # of a range of slots
_UNREADABLE = "its answer about which server serves our keys cannot be read"
_FAILURES = (OSError, ssl.SSLError, TimeoutError, ConnectionLost, RedisRefusal)
_HOPS_MAX = 5
_PAUSE, _PAUSE_MAX = 0.008, 0.512
# This server does not serve our keys (any more): find out again which one does.
_ELSEWHERE = ("READONLY", "CLUSTERDOWN", "MASTERDOWN", "LOADING", "MOVED")


class OwnRedisClient(RedisClient):
    """Made by `open`. It serves the event loop that opened it, until `close`."""

    __slots__ = ("_closed", "_connecting", "_route", "_serving", "_spare", "_wire")

    def __init__(self, options: RedisOptions, time: Clock | None = None) -> None:
        super().__init__(options, time)
        self._route = ServerRoute(options, self._another_serves)
        self._wire: RedisTransport | None = None
        self._connecting: Connecting[RedisTransport] = Connecting()
        self._spare: list[RedisTransport] = []
        self._closed = False
        self._serving = 0  # how often another server took over

    @classmethod
    async def open(cls, options: RedisOptions, time: Clock | None = None) -> OwnRedisClient:
        """A client that has been connected once."""
        client = cls(options, time)
        await client._ready()
        return client

    @property
    def connections(self) -> int:
        """Grows with every attempt to connect: while it is the same, the same server answered."""
        return self._connecting.attempts

    async def run(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Word] = ()) -> Any:
        """Runs the script once. ARGV[1] is `told`; `args` are ARGV[2] and on."""
        told = 0 if self._time is None else self.told  # the branch spares the usual case a call
        try:
            return await self._follow(pack(("EVALSHA", script.sha, len(keys), *keys, told, *args)))
        except RedisRefusal as refusal:
            if refusal.code != "NOSCRIPT":
                raise ours(refusal, self.options.where, keys) from refusal
        try:
            return await self._follow(pack(("EVAL", script.text, len(keys), *keys, told, *args)))
        except RedisRefusal as refusal:
            raise ours(refusal, self.options.where, keys) from refusal

    async def together(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Runs commands atomically, once. A refused command has its RedisRefusal among the answers; the others were
        executed all the same."""
        packed = b"".join([pack(each) for each in (("MULTI",), *commands, ("EXEC",))])
        for hop in range(_HOPS_MAX):
            wire = await self._ready()
            try:
                answers = await wire.ask_many(packed, len(commands) + 2)
                self.replies += 1
            except ConnectionLost as cut:
                raise ours(cut, self.options.where) from cut
            refusal = _refusal_among(answers)
            if refusal is not None:
                self._note(refusal, wire)
            if refusal is not None and refusal.code == "ASK":
                # ASKING applies from MULTI to EXEC.
                answers = await self._asking(packed, len(commands) + 2, refusal)
                refusal = _refusal_among(answers)
            if refusal is None and isinstance(answers[-1], list):
                return answers[-1]
            failure = refusal or ConnectionLost("the answer to EXEC is not a list")
            if refusal is None or refusal.code not in ("MOVED", "ASK", "TRYAGAIN") or hop == _HOPS_MAX - 1:
                raise ours(failure, self.options.where) from failure
            await asyncio.sleep(_pause(hop))
        raise AssertionError("the last hop answers or raises")

    async def ask_many(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Several reads in one round trip; repeated if an answer is lost."""
        if not commands:
            return []
        packed = b"".join([pack(each) for each in commands])
        for attempt in range(self.options.max_retries + 1):
            wire = await self._ready()  # which itself tries to connect as often
            try:
                return await self._read(wire, packed, commands)
            except ReplyTooLarge:
                raise
            except StoreUnavailable:
                if attempt == self.options.max_retries:
                    raise
                await asyncio.sleep(_pause(attempt))
        raise AssertionError("the last attempt answers or raises")

    async def block(self, *command: Word, timeout: float) -> Any:
        """A command that blocks at the server for at most `timeout` seconds, on a connection of its own; never
        repeated."""
        async with self._require_free_connection(timeout):
            serving = self._serving
            wire = self._spare.pop() if self._spare else None
            try:
                if wire is None or not wire.open:
                    wire = await self._connect()
                wire.patience(timeout + self.options.read_timeout.total_seconds())
                answer = await wire.ask(pack(command))
                self.replies += 1
            except BaseException as error:
                if wire is not None:
                    wire.end("the wait was cancelled")
                if wire is not None and isinstance(error, RedisRefusal):
                    self._note(error, wire)
                if isinstance(error, _FAILURES):
                    raise ours(error, self.options.where) from error
                raise
            if self._closed or serving != self._serving or len(self._spare) >= self.options.min_idle:
                wire.end("it is not needed any more")
            else:
                self._spare.append(wire)
            return answer

    async def close(self) -> None:
        """Ends all connections. Callers that wait for an answer get StoreUnavailable."""
        self._closed = True
        self._route.close()
        for wire in (*self._spare, *([self._wire] if self._wire is not None else [])):
            wire.end("this process closed the connection")
        self._spare.clear()
        self._wire = None

    async def _read(self, wire: RedisTransport, packed: bytes, commands: Sequence[Sequence[Word]]) -> list[Any]:
        try:
            answers = await wire.ask_many(packed, len(commands))
            self.replies += 1
            for number, answer in enumerate(answers):
                if isinstance(answer, RedisRefusal):
                    self._note(answer, wire)
                    if answer.code != "ASK":
                        raise answer
                    (answers[number],) = await self._asking(pack(commands[number]), 1, answer)
                    if isinstance(answers[number], RedisRefusal):
                        raise answers[number]
        except RedisRefusal as refusal:
            raise ours(refusal, self.options.where, keys_of(commands)) from refusal
        except ConnectionLost as cut:
            raise ours(cut, self.options.where) from cut
        return answers

    async def _follow(self, packed: bytes) -> Any:
        """Sends one command, following redirects. A refusal means that nothing was done; a lost connection ends it."""
        for hop in range(_HOPS_MAX):
            wire = self._wire
            if wire is None or wire.crowded or not wire.open:
                wire = await self._ready()
            try:
                answer = await wire.ask(packed)
                self.replies += 1
                return answer
            except ConnectionLost as cut:
                raise ours(cut, self.options.where) from cut
            except RedisRefusal as said:
                refusal = said
            self._note(refusal, wire)
            if refusal.code == "ASK":
                (answer,) = await self._asking(packed, 1, refusal)
                if not isinstance(answer, RedisRefusal):
                    return answer
                refusal = answer
            if refusal.code not in ("MOVED", "TRYAGAIN") or hop == _HOPS_MAX - 1:
                raise refusal
            if refusal.code == "TRYAGAIN":
                await asyncio.sleep(_pause(hop))
        raise AssertionError("the last hop answers or raises")

    async def _asking(self, packed: bytes, count: int, refusal: RedisRefusal) -> list[Any]:
        """Sends to the new node what a migrating slot redirects: one command, or one MULTI to EXEC; later commands go
        to the old node again. Refusals are among the answers."""
        try:
            address = redirected(refusal, self.options.nodes[0][0])
            if address is None:
                raise ConnectionLost("it redirects to an invalid address")
            wire = await dial(*address, self.options)
            try:
                answers = await wire.ask_many(pack(("ASKING",)) + packed, count + 1)
                self.replies += 1
                return answers[1:]
            finally:
                wire.end("the slot's other node answered")
        except _FAILURES as error:
            raise ours(error, self.options.where) from error

    def _note(self, refusal: RedisRefusal, wire: RedisTransport) -> None:
        if refusal.code in ("MOVED", "ASK") and not self.options.cluster:  # no server sends us to another one
            raise ConfigError(f"{self.options.where} is a node of a cluster", do="set redis.cluster: true")
        self._leave(refusal, wire)

    def _leave(self, refusal: RedisRefusal, wire: RedisTransport) -> None:
        """Ends the use of a server that redirected; concurrent callers may have connected to the new one already."""
        if refusal.code not in _ELSEWHERE or (self._wire is not wire and self._wire is not None):
            return
        if refusal.code == "MOVED" and (address := redirected(refusal, self.options.nodes[0][0])) is not None:
            self._route.moved(address)
        wire.retire(f"this server does not serve our keys any more ({refusal.code})")
        self._wire = None

    def _another_serves(self) -> None:
        self._serving += 1
        why = "another server is the master now"
        for wire in self._spare:
            wire.end(why)
        self._spare.clear()
        if self._wire is not None:
            self._wire.retire(why)
            self._wire = None

    async def _ready(self) -> RedisTransport:
        wire = self._standing() or await self._connecting.once(self._standing, self._reopen)
        if wire.crowded:
            await wire.room(self.options.write_timeout.total_seconds())
        return wire

    def _standing(self) -> RedisTransport | None:
        return self._wire if self._wire is not None and self._wire.open else None

    async def _reopen(self) -> RedisTransport:
        self._wire = await self._connect()
        return self._wire

    async def _connect(self) -> RedisTransport:
        for attempt in range(self.options.max_retries + 1):
            if self._closed:
                raise StoreUnavailable(f"the connection to {self.options.where} is closed", do="open it again")
            try:
                return await self._route.connect()
            except StoreUnavailable as error:
                if isinstance(error, NotInTime) and not (self.options.sentinel or self.options.cluster):
                    raise
                if attempt == self.options.max_retries:
                    raise
                await asyncio.sleep(_pause(attempt))
        raise AssertionError("the last attempt answers or raises")


def _refusal_among(answers: Sequence[Any]) -> RedisRefusal | None:
    """Why a MULTI was not run. A refusal inside the answer to EXEC belongs to one command."""
    return next((answer for answer in answers if isinstance(answer, RedisRefusal)), None)


def _pause(attempt: int) -> float:
    """Grows with each attempt, with a random factor so that processes differ."""
    longest: float = min(_PAUSE_MAX, _PAUSE * 2**attempt)
    return longest * (0.5 + random.random() / 2)


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
            except _FAILURES:
                pass  # that server is down again: try the others
        if not self._options.sentinel and not self._options.cluster:
            return await self._first()
        last: Exception = StoreUnavailable(f"{self._options.where} is nowhere", do="check redis.addr")
        for node in self._known:
            try:
                found = await self._ask(node)
                wire = await dial(*found, self._options, master=bool(self._options.sentinel))
            except _FAILURES as error:
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
            except _FAILURES as error:
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
