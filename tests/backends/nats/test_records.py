"""Records on NATS: what only this backend does. Names, bytes, costs, and entries that no record names."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import nats as usual_client
import pytest
from hypothesis import given, strategies as st

from backends.nats.records_scene import THINGS, at, opened, version
from servers.nats import Nats as NatsServer, nats
from wrasse.backends.nats import due_index
from wrasse.backends.nats.client.connection import NatsAnswer, NatsConnection
from wrasse.backends.nats.client.jetstream import JetStream
from wrasse.backends.nats.connect import Nats
from wrasse.backends.nats.due_index import DueEntry, text_of, token
from wrasse.backends.nats.kv_store import KvBucket
from wrasse.backends.nats.records import KvRecord, pack, unpack
from wrasse.backends.record_files import LastWrites
from wrasse.clock import EPOCH, ManualClock
from wrasse.errors import Refused, StoreBroken, TooLarge
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import KEY_BYTES_MAX, VALUE_BYTES_MAX, Collection, Record

TENDED = Collection("things/r", "things/due", "things/buckets", timedelta(seconds=1), tended=True)
keys = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1).filter(
    lambda key: len(key.encode()) <= KEY_BYTES_MAX
)


@dataclass
class Asked:
    """What is asked of the server, counted."""

    subjects: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def by(self, link: NatsConnection, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
        plain = NatsConnection.request

        async def counted(own: NatsConnection, subject: str, *args: object, **named: object) -> NatsAnswer:
            if own is link:
                self.subjects.append(subject)
            return await plain(own, subject, *args, **named)  # type: ignore[arg-type]  # as they came

        with monkeypatch.context() as patched:
            patched.setattr(NatsConnection, "request", counted)
            yield self


async def subjects(store: Nats, matching: str = ">") -> list[str]:
    """What the bucket holds, without what every one of them begins with."""
    start = f"$KV.{store.connection.options.root}."
    asked = {"subjects_filter": start + matching}
    info = await JetStream(store.connection).call(f"STREAM.INFO.KV_{store.connection.options.root}", asked)
    return sorted(each.removeprefix(start) for each in info["state"].get("subjects", {}))


# Names and bytes


@given(keys)
def test_any_key_is_a_name_that_a_bucket_takes_and_comes_back(key: str) -> None:
    name = token(key)
    assert (text_of(name), re.fullmatch(r"[-/_=a-zA-Z0-9]+", name) is not None) == (key, True)


@given(st.sets(keys, min_size=2, max_size=2))
def test_two_keys_never_have_one_name(pair: set[str]) -> None:
    assert len({token(key) for key in pair}) == 2


@pytest.mark.parametrize("foreign", ["", "a.b", "a b", "=", "=2", "=2f", "=FF", "é", "*", ">"])
def test_what_nobody_of_us_wrote_is_no_key(foreign: str) -> None:
    assert text_of(foreign) is None


@given(st.binary(max_size=300), st.booleans(), st.integers(0, 400))
def test_a_record_comes_back_from_its_bytes(value: bytes, gone: bool, bytes_max: int) -> None:
    writes = LastWrites().and_then("n", "v1").and_then(None, None)
    left = (DueEntry("2026", "a"), DueEntry("2027", "b"))
    stored = KvRecord(value, "v", EPOCH + timedelta(microseconds=7), writes, DueEntry("2026", "m"), left, gone)
    assert unpack(pack(stored, bytes_max)) == stored


@pytest.mark.parametrize("data", [b"", b"{}", b"x\n", b'{"version":"v","packed":true}\nno zlib'])
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        unpack(data)


# The bucket


async def test_roots_do_not_see_each_other(nats_server: NatsServer) -> None:
    async with opened(at(nats_server.port)) as one, opened(at(nats_server.port)) as other:
        await one.records(THINGS).create("a", b"1")
        assert await other.records(THINGS).get("a") is None


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"max_age": 10**12}, "max_age"), ({"max_msgs_per_subject": 5}, "newest"), ({"discard": "old"}, "oldest")],
)
async def test_a_bucket_that_would_lose_records_is_refused(
    nats_server: NatsServer, settings: dict[str, object], word: str
) -> None:
    options = at(nats_server.port)
    link = await NatsConnection.open(options)
    ours = {"name": f"KV_{options.root}", "subjects": [f"$KV.{options.root}.>"], "max_msgs_per_subject": 1}
    await JetStream(link).call(f"STREAM.CREATE.KV_{options.root}", ours | {"discard": "new"} | settings)
    await link.close()
    with pytest.raises(Refused, match=word):
        await Nats.open(options)


async def test_the_bucket_is_one_that_the_usual_client_lists_and_reads(nats_server: NatsServer) -> None:
    async with opened(at(nats_server.port)) as store:
        await store.records(THINGS).create("a b/é", b"the value")
        client = await usual_client.connect(nats_server.url)
        try:
            bucket = await client.jetstream().key_value(store.connection.options.root)
            (key,) = await bucket.keys()
            value = (await bucket.get(key)).value
        finally:
            await client.close()
    assert (key, value and value.endswith(b"\nthe value")) == ("things/r.r.a=20b/=C3=A9", True)


async def test_keys_of_others_in_the_bucket_are_left_alone(nats_server: NatsServer) -> None:
    async with opened(at(nats_server.port)) as store:
        await store.records(THINGS).create("a", b"1")
        for foreign in ("readme", "things/r.notes.x", "things/r.due.2026.a.b"):
            await store.connection.request(f"$KV.{store.connection.options.root}.{foreign}", b"theirs")
        page = await store.records(THINGS).page("", None, 10)
        assert [record.key for record in page] == ["a"]


async def test_a_record_that_somebody_overwrote_is_reported_not_guessed(nats_server: NatsServer) -> None:
    async with opened(at(nats_server.port)) as store:
        records = store.records(THINGS)
        await records.create("b c", b"2")
        await store.connection.request(f"$KV.{store.connection.options.root}.things/r.r.a", b"theirs")
        with pytest.raises(StoreBroken, match=r"the record of .* foreign") as failed:
            await records.get("a")
        advised = re.search(r"nats stream purge (\S+) --subject='(\S+)'", failed.value.do)
        assert advised, "one record is taken away, not the bucket"
        await store.connection.request(
            f"$JS.API.STREAM.PURGE.{advised[1]}", msgspec.json.encode({"filter": advised[2]})
        )
        assert [each.key for each in await records.page("", None, 10)] == ["b c"]
        assert await records.create("a", b"1")


@pytest.mark.parametrize("garbage", [b"", b"theirs", b"{}\nvalue", b'{"version":"v","due":99999999999999999999}\n'])
@pytest.mark.parametrize("collection", [THINGS, TENDED])
async def test_a_message_that_is_no_record_costs_one_record(
    nats_server: NatsServer, collection: Collection, garbage: bytes
) -> None:
    async with opened(at(nats_server.port)) as store:
        records = store.records(collection)
        for key in "abc":
            await records.create(key, key.encode(), due_at=EPOCH)
        await store.connection.request(f"$KV.{store.connection.options.root}.things/r.r.b", garbage)
        for _ in range(2):
            page = await records.page("", None, 10)
            assert [(each.key, each.value) for each in page] == [("a", b"a"), ("b", garbage), ("c", b"c")]
            due = await records.due(None, None, 10)
            assert [(each.key, each.value) for each in due] == [("a", b"a"), ("b", garbage), ("c", b"c")]
        with pytest.raises(StoreBroken, match="foreign"):
            await records.put("b", b"2", at=page.items[1].version)


async def test_a_record_longer_than_a_message_says_which_limit_to_raise() -> None:
    value = secrets.token_bytes(VALUE_BYTES_MAX)
    with nats() as server:
        async with opened(at(server.port)) as store:
            with pytest.raises(TooLarge) as caught:
                await store.records(THINGS).create("a", value)
            plain = version(await store.records(THINGS).create("a", bytes(VALUE_BYTES_MAX)))
            found = await store.records(THINGS).get("a")
    assert "max_payload" in caught.value.do
    assert found == Record("a", bytes(VALUE_BYTES_MAX), plain, None)


async def test_a_server_with_room_takes_the_longest_record_as_it_is(nats_server: NatsServer) -> None:
    value = secrets.token_bytes(VALUE_BYTES_MAX)
    async with opened(at(nats_server.port)) as store:
        await store.records(THINGS).create("a", value)
        found = await store.records(THINGS).get("a")
        assert found is not None
        assert found.value == value


# What it costs


async def test_looking_for_what_is_due_is_one_question_however_much_is_kept(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with opened(at(nats_server.port), clock) as store:
        records = store.records(THINGS)
        for n in range(50):
            await records.create(f"k{n}", b"", due_at=clock.now() + timedelta(hours=1, milliseconds=n))
        with Asked().by(store.connection, monkeypatch) as asked:
            page = await records.due(None, None, 10)
        assert (len(page), len(asked.subjects)) == (0, 1)


async def test_a_write_of_a_record_that_was_just_read_is_one_question(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(at(nats_server.port)) as store:
        records = store.records(THINGS)
        first = version(await records.create("a", b"1"))
        with Asked().by(store.connection, monkeypatch) as asked:
            await records.put("a", b"2", at=first)
        assert len(asked.subjects) == 1


async def test_a_long_list_of_what_is_due_is_asked_for_once_and_read_to_its_end(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_index, "LISTING_LONG", 10)
    clock = ManualClock()
    async with opened(at(nats_server.port), clock) as store:
        records, found, after = store.records(THINGS), list[str](), None
        for n in range(40):
            await records.create(f"k{n:02}", b"", due_at=clock.now() - timedelta(seconds=5))
        with Asked().by(store.connection, monkeypatch) as asked:
            while True:
                page = await records.due(None, after, 10)
                found += [record.key for record in page]
                after = page.cursor
                if after is None:
                    break
        listings = [subject for subject in asked.subjects if "STREAM.INFO" in subject]
        assert (found, len(listings)) == ([f"k{n:02}" for n in range(40)], 4 + 1)  # the buckets each time


# The due index


async def test_a_write_that_came_too_late_leaves_its_entry_only_until_it_is_stale(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, options = ManualClock(), at(nats_server.port)
    async with opened(options, clock) as store, opened(options, clock) as other:
        records = store.records(THINGS)
        first = version(await records.create("a", b"1"))
        assert await other.records(THINGS).put("a", b"2", at=first)
        late = await records.put("a", b"3", at=first, due_at=clock.now() + timedelta(seconds=1))
        clock.advance(timedelta(seconds=5))
        shown = len(await records.due(None, None, 10))
        fresh = await subjects(store, "things/r.due.>")
        monkeypatch.setattr(due_index, "STALE", timedelta(seconds=-60))
        await records.due(None, None, 10)
        stale = await subjects(store, "things/r.due.>")
        assert (late.outcome, shown, len(fresh), stale) == (Outcome.CONFLICT, 0, 1, [])


async def test_a_bucket_of_the_index_goes_when_it_is_empty_and_comes_back_when_it_is_needed(
    nats_server: NatsServer,
) -> None:
    clock = ManualClock()
    async with opened(at(nats_server.port), clock) as store:
        records = store.records(THINGS)
        due = clock.now() + timedelta(seconds=1)
        first = version(await records.create("a", b"", due_at=due))
        clock.advance(due_index.RETIRED_AFTER + timedelta(minutes=1))
        await records.put("a", b"", at=first)
        await records.due(None, None, 10)
        gone = await subjects(store, "things/r.buckets.>")
        await records.create("b", b"", due_at=due)
        assert (gone, [record.key for record in await records.due(None, None, 10)]) == ([], ["b"])


async def test_a_deleted_record_is_gone_for_good_after_an_hour(nats_server: NatsServer) -> None:
    clock = ManualClock()
    async with opened(at(nats_server.port), clock) as store:
        records = store.records(THINGS)
        first = version(await records.create("a", b"", nonce="n1"))
        await records.delete("a", at=first, nonce="n2")
        kept = await subjects(store, "things/r.r.>")
        clock.advance(timedelta(hours=1, minutes=10))
        await records.due(None, None, 10)
        await records.due(None, None, 10)
        assert (len(kept), await subjects(store, "things/r.>")) == (1, [])


async def test_a_record_whose_writes_had_no_names_leaves_nothing_when_it_is_deleted(nats_server: NatsServer) -> None:
    async with opened(at(nats_server.port)) as store:
        records = store.records(THINGS)
        first = version(await records.create("a", b"", due_at=EPOCH))
        assert await records.delete("a", at=first)
        assert await subjects(store, "things/r.r.>") + await subjects(store, "things/r.due.>") == []


async def test_what_a_tended_record_left_is_shown_until_somebody_has_looked(nats_server: NatsServer) -> None:
    clock = ManualClock()
    async with opened(at(nats_server.port), clock) as store:
        records = store.records(TENDED)
        due = clock.now() - timedelta(seconds=3)
        first = version(await records.create("a", b"", due_at=due))
        await records.put("a", b"", at=first, entry_stays=True)
        shown = [(record.key, record.due_at) for record in await records.due(None, None, 10)]
        await records.leave("a", due)
        assert (shown, len(await records.due(None, None, 10))) == ([("a", due)], 0)


async def test_an_entry_of_a_write_under_way_is_not_taken_away_by_whoever_leaves_another(
    nats_server: NatsServer,
) -> None:
    clock = ManualClock()
    async with opened(at(nats_server.port), clock) as store:
        records = store.records(TENDED)
        due = clock.now() - timedelta(seconds=3)
        await records.get("a", entering=due)
        await records.leave("a", due)
        await records.create("a", b"", due_at=due)
        assert [record.key for record in await records.due(None, None, 10)] == ["a"]


async def test_a_record_created_over_a_deleted_one_stays_in_the_index(nats_server: NatsServer) -> None:
    clock = ManualClock()
    async with opened(at(nats_server.port), clock) as store:
        records = store.records(THINGS)
        first = version(await records.create("a", b"", nonce="n1"))
        await records.delete("a", at=first, nonce="n2")
        again = clock.now() + timedelta(hours=1)  # the very bucket of what says `gone`
        await records.create("a", b"2", due_at=again, nonce="n3")
        clock.advance(timedelta(hours=2))
        assert [record.value for record in await records.due(None, None, 10)] == [b"2"]


# Between two steps of one of us


@contextlib.contextmanager
def before_purging(part: str, act: Callable[[], Awaitable[object]], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Does this once, right before the first purge of a subject with this part."""
    plain, left = KvBucket.purge, [act]

    async def late(own: KvBucket, subject: str, *args: int) -> bool:
        if part in subject and left:
            await left.pop()()
        return await plain(own, subject, *args)

    with monkeypatch.context() as patched:
        patched.setattr(KvBucket, "purge", late)
        yield
    assert not left, "nothing was purged"


async def test_an_entry_in_a_bucket_that_another_process_took_away_is_found(nats_server: NatsServer) -> None:
    clock, options = ManualClock(), at(nats_server.port)
    async with opened(options, clock) as store, opened(options, clock) as other:
        records, due = store.records(THINGS), clock.now()
        await records.create("a", b"", due_at=due)
        clock.advance(due_index.RETIRED_AFTER + timedelta(minutes=1))
        for record in await other.records(THINGS).due(None, None, 10):
            await other.records(THINGS).delete(record.key, at=record.version)
        await other.records(THINGS).due(None, None, 10)
        assert await subjects(store, "things/r.buckets.>") == []
        await records.create("b", b"", due_at=due)
        assert [record.key for record in await other.records(THINGS).due(None, None, 10)] == ["b"]


async def test_an_entry_made_while_its_bucket_is_taken_away_is_found(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, options = ManualClock(), at(nats_server.port)
    async with opened(options, clock) as store, opened(options, clock) as other:
        records, due = store.records(THINGS), clock.now()
        first = version(await records.create("a", b"", due_at=due))
        clock.advance(due_index.RETIRED_AFTER + timedelta(minutes=1))
        await records.delete("a", at=first)
        with before_purging(".buckets.", lambda: other.records(THINGS).create("b", b"", due_at=due), monkeypatch):
            await records.due(None, None, 10)
        assert [record.key for record in await records.due(None, None, 10)] == ["b"]


async def test_a_record_created_while_the_deleted_one_is_cleared_away_stays_in_the_index(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, options = ManualClock(), at(nats_server.port)
    async with opened(options, clock) as store, opened(options, clock) as other:
        records = store.records(THINGS)
        first = version(await records.create("a", b"", nonce="n1"))
        await records.delete("a", at=first, nonce="n2")
        again = clock.now() + timedelta(hours=1)  # the very bucket of what says `gone`
        clock.advance(timedelta(hours=2))
        with before_purging(".r.", lambda: other.records(THINGS).create("a", b"2", due_at=again), monkeypatch):
            await records.due(None, None, 10)
        assert [record.value for record in await records.due(None, None, 10)] == [b"2"]


async def test_a_nameless_delete_of_a_version_that_is_over_removes_nothing(nats_server: NatsServer) -> None:
    options = at(nats_server.port)
    async with opened(options) as store, opened(options) as other:
        first = version(await store.records(THINGS).create("a", b"1"))
        await other.records(THINGS).put("a", b"2", at=first)
        deleted = await store.records(THINGS).delete("a", at=first)
        record = await store.records(THINGS).get("a")
        assert (deleted.outcome, record and record.value) == (Outcome.CONFLICT, b"2")
