"""A NATS server as a backend: its health sample, the findings of the doctor, and a cluster that loses its leader."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
from datetime import datetime, timedelta

import msgspec
import pytest

from backends.nats.records_scene import THINGS, at, opened
from backends.nats.test_records_trouble import Told, assert_each_once, write_names
from servers.nats import Nats as NatsServer, nats, nats_cluster, nats_leaf
from wrasse.backends.nats import kv_store as kv_store
from wrasse.backends.nats.client.transport import ServerInfo
from wrasse.backends.nats.connect import UNLIMITED, Nats, NatsHealth, judge
from wrasse.backends.nats.options import NatsOptions
from wrasse.clock import EPOCH, SystemClock
from wrasse.errors import ConfigError, Refused, StoreUnavailable
from wrasse.ports.backend import FAIL, OK, WARN, Finding
from wrasse.ports.groups import StartAt
from wrasse.ports.streams import Draft

GOOD = NatsHealth(
    version="2.12.1",
    numbers=(2, 12, 1),
    max_payload=8 << 20,
    domain="",
    storage_used=10,
    storage_max=1_000,
    memory_max=UNLIMITED,
    streams=3,
    streams_max=UNLIMITED,
    clustered=True,
    storage="file",
    replicas=3,
    replicas_wanted=3,
    replicas_behind=0,
    bucket_bytes=10,
    bucket_bytes_max=UNLIMITED,
)


def found(check: str, changes: dict[str, object]) -> list[Finding]:
    changed = dataclasses.replace(GOOD, **changes)  # type: ignore[arg-type]  # by name
    return [each for each in judge(changed) if each.check == check]


# What the doctor says


def test_a_good_server_has_nothing_to_do() -> None:
    assert {(each.state, each.do) for each in judge(GOOD)} == {(OK, "")}


@pytest.mark.parametrize(
    ("check", "changes", "state", "word"),
    [
        ("nats", {"numbers": (2, 8, 4)}, FAIL, "2.9"),
        ("nats", {"numbers": (2, 9, 20)}, FAIL, "2.9.21"),
        ("nats", {"numbers": (2, 9, 21)}, WARN, "2.10"),
        ("nats", {"numbers": (2, 9, 10), "replicas": 1, "replicas_wanted": 1}, WARN, "2.10"),
        ("jetstream", {"storage_used": 950}, WARN, "max_file"),
        ("jetstream", {"storage_max": 0}, FAIL, "max_file"),
        ("jetstream", {"streams_max": 3}, WARN, "max_streams"),
        ("jetstream", {"bucket_bytes": 99, "bucket_bytes_max": 100}, WARN, "max-bytes"),
        ("storage", {"storage": "memory"}, WARN, "nats.storage"),
        ("storage", {"replicas": 1, "replicas_wanted": 1}, WARN, "sync_interval"),
        ("replicas", {"replicas": 1}, WARN, "replicas 3"),
        ("replicas", {"replicas": 1, "replicas_wanted": 1}, WARN, "nats.replicas"),
        ("replicas", {"replicas_behind": 1}, WARN, "report"),
        ("max_payload", {"max_payload": 64 << 10}, WARN, "max_payload"),
    ],
)
def test_what_is_not_well_says_what_it_costs_and_what_to_do(
    check: str, changes: dict[str, object], state: str, word: str
) -> None:
    assert any(finding.state == state and word in finding.do for finding in found(check, changes))


async def test_a_server_of_our_own_is_examined(nats_server: NatsServer) -> None:
    async with opened(at(nats_server.port)) as store:
        states = {finding.check: finding.state for finding in await store.examine()}
    assert states == {"nats": OK, "jetstream": OK, "storage": WARN, "replicas": OK, "max_payload": OK}


async def test_a_server_without_jetstream_says_what_to_switch_on() -> None:
    accounts = "accounts { A { users: [ { user: a, password: b } ] } }"
    with nats(accounts) as server, pytest.raises(StoreUnavailable, match="JetStream"):
        await Nats.open(at(server.port, username="a", password="b"))


async def test_copies_on_a_server_that_is_alone_are_refused_by_the_name_of_the_setting(nats_server: NatsServer) -> None:
    with pytest.raises(ConfigError, match=r"nats\.replicas is 3"):
        await Nats.open(at(nats_server.port, replicas=3))


async def test_a_write_is_answered_although_nobody_tells_the_time(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> datetime:
        raise StoreUnavailable("away")

    async with opened(at(nats_server.port)) as store:
        first = await store.records(THINGS).create("a", b"1")
        monkeypatch.setattr(store._bucket.time, "_ask", away)
        monkeypatch.setattr(store._bucket.time._time, "_kept", -1.0)
        second = await store.records(THINGS).put("a", b"2", at=first.version or "")
    assert (bool(second), second.at >= first.at) == (True, True)


async def test_a_server_that_is_too_old_is_refused(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ServerInfo.parse

    def older(line: bytes) -> ServerInfo:
        return msgspec.structs.replace(plain(line), version="2.8.4")

    monkeypatch.setattr(ServerInfo, "parse", older)
    with pytest.raises(Refused, match=r"2\.8\.4"):
        await Nats.open(at(nats_server.port))


async def test_what_wrasse_keeps_for_itself_is_no_stream_that_a_pattern_could_match() -> None:
    with nats() as server:
        async with opened(at(server.port)) as store:
            await store.records(THINGS).create("a", b"1", due_at=EPOCH)
            await store.streams.append([Draft("orders.paid", b"1")])
            await store.groups.join("orders.paid", "billing", StartAt(first=True))
            found = await store.streams.subjects(">", None, 100)
    assert found.items == ("orders.paid",)


async def test_a_server_that_does_not_tell_its_time_is_asked_by_a_message(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = kv_store._info

    def older(answer: bytes) -> kv_store.Info:
        info = plain(answer)
        info.ts = None
        return info

    monkeypatch.setattr(kv_store, "_info", older)
    async with opened(at(nats_server.port)) as store:
        written = await store.records(THINGS).create("a", b"1", due_at=EPOCH)
        page = await store.records(THINGS).due(None, None, 10)
    assert abs(written.at - SystemClock().now()) < timedelta(minutes=1)
    assert [record.key for record in page] == ["a"]


async def test_jetstream_behind_a_leaf_is_reached_by_its_domain() -> None:
    with nats_leaf() as (_, leaf):
        options = at(leaf.port, domain="hub")
        async with asyncio.timeout(30):
            while True:  # until the leaf has found the hub
                with contextlib.suppress(StoreUnavailable):
                    store = await Nats.open(options)
                    break
                await asyncio.sleep(0.05)
        try:
            records = store.records(THINGS)
            first = await records.create("a", b"1", due_at=EPOCH)
            await records.put("a", b"2", at=first.version or "", due_at=EPOCH)
            found = [record.value for record in await records.due(None, None, 10)]
            await store.streams.append([Draft("orders.paid", b"1")])
            page = await store.streams.subjects(">", None, 10)
        finally:
            await store.close()
    assert (found, page.items) == ([b"2"], ("orders.paid",))


async def test_a_pattern_that_is_archived_later_does_not_shut_out_subjects_that_come_after_it() -> None:
    with nats() as server:
        plain = at(server.port)
        archiving = dataclasses.replace(plain, patterns=("orders.*.paid",))
        async with opened(plain) as one, opened(archiving) as other:
            await one.streams.append([Draft("orders.eu.paid", b"1")])
            for subject in ("orders.eu.paid", "orders.us.paid"):
                await other.streams.append([Draft(subject, b"2")])
            await one.streams.append([Draft("orders.us.paid", b"3")])
            states = [await other.streams.info(subject) for subject in ("orders.eu.paid", "orders.us.paid")]
    assert [state and state.length for state in states] == [2, 2]


# Its pulse


async def test_the_pulse_tells_the_servers_time_and_the_same_server_to_everybody(nats_server: NatsServer) -> None:
    async with opened(at(nats_server.port)) as one, opened(at(nats_server.port)) as other:
        pulses = await one.health_sample(), await other.health_sample()
        assert pulses[0].identity == pulses[1].identity
        assert abs(pulses[0].at - SystemClock().now()) < timedelta(minutes=1)


async def test_a_restart_is_felt_and_nothing_is_lost_by_it() -> None:
    with nats() as server:
        async with opened(at(server.port)) as store:
            await store.records(THINGS).create("a", b"1")
            before = await store.health_sample()
            server.restart()
            after = await store.health_sample()
            record = await store.records(THINGS).get("a")
    assert (before.identity == after.identity, record and record.value) == (False, b"1")


async def test_a_write_that_read_what_the_server_has_forgotten_does_not_replace_what_it_has_instead() -> None:
    with nats() as server:
        options, kept = at(server.port), server.place / "kept"
        async with opened(options) as one, opened(options) as other:
            first = await one.records(THINGS).create("a", b"1")
            server.stop()
            shutil.copytree(server.place / "js", kept)
            server.start()
            second = await one.records(THINGS).put("a", b"2", at=first.version or "")
            server.kill()
            shutil.rmtree(server.place / "js")
            shutil.copytree(kept, server.place / "js")  # what a machine that lost its last writes comes up with
            server.start()
            await other.records(THINGS).put("a", b"3", at=first.version or "")  # the same number as b"2" had
            late = await one.records(THINGS).put("a", b"4", at=second.version or "")
            record = await one.records(THINGS).get("a")
    assert (bool(late), record and record.value) == (False, b"3")


async def test_a_server_that_is_away_is_unavailable_and_nothing_else() -> None:
    with nats() as server:
        async with opened(at(server.port)) as store:
            server.kill()
            with pytest.raises(StoreUnavailable):
                await store.health_sample()
            with pytest.raises(StoreUnavailable):
                await store.records(THINGS).create("a", b"1")


# A cluster


@pytest.mark.full
async def test_a_cluster_that_loses_its_leader_loses_no_record() -> None:
    told, over = Told(), asyncio.Event()
    with nats_cluster() as cluster:
        options = dataclasses.replace(NatsOptions.of(cluster.url), replicas=3, root="wrasse")
        async with opened(options) as one, opened(options) as other:
            await one.records(THINGS).create("names", b"")
            before = await one.health_sample()
            leader = cluster.leader("KV_wrasse")
            assert leader is not None

            async def blow() -> None:
                await asyncio.sleep(0.3)
                leader.kill()
                async with asyncio.timeout(60):
                    while True:
                        with contextlib.suppress(StoreUnavailable):
                            if (await one.health_sample()).identity != before.identity:
                                break
                        await asyncio.sleep(0.1)
                over.set()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(blow())
                for who, store in enumerate((one, other)):
                    tasks.create_task(write_names(store.records(THINGS), who, over, told))
            record = await one.records(THINGS).get("names")
            assert record is not None
            assert_each_once(record.value, told)
            found = {finding.check: finding.state for finding in await one.examine()}
            assert found["replicas"] == WARN  # one of three is away
