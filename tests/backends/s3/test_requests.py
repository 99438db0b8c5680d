"""One request on a bad day: what is tried again, what is not, what an error says, and what time it is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from backends.s3.scene import once, scene
from servers.strict_s3 import BUSY, CUT_AFTER, CUT_BEFORE
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.connect import S3
from wrasse.backends.s3.transport import TRIES, CredentialSource, StoreClock
from wrasse.backends.s3.xml import failure_of
from wrasse.clock import ManualClock
from wrasse.errors import ConfigError, StoreUnavailable, UsageError
from wrasse.ports.records import Collection

HERE = S3Address("my-bucket")


@pytest.mark.parametrize("fault", [BUSY, CUT_BEFORE, CUT_AFTER])
async def test_a_read_is_tried_again_while_the_store_is_busy_or_away(fault: str) -> None:
    async with scene() as now:
        await now.backend.objects.create("a", b"1")
        now.server.plan = once(fault, "HEAD", times=TRIES - 1)
        head = await now.backend.objects.head("a")
        assert head is not None


async def test_a_store_that_stays_busy_is_an_error_that_says_so() -> None:
    async with scene() as now:
        now.server.plan = once(BUSY, "GET", times=TRIES)
        with pytest.raises(StoreUnavailable, match="throttles us"):
            await now.backend.objects.page("", None, 1)


async def test_a_pulse_is_one_request_and_fails_as_unavailable() -> None:
    async with scene() as now:
        before = now.backend.requests
        at = (await now.backend.health_sample()).at
        assert (now.backend.requests - before, at) == (1, now.clock.now())
        now.server.plan = once(CUT_BEFORE, "HEAD", times=TRIES)
        with pytest.raises(StoreUnavailable):
            await now.backend.health_sample()


@pytest.mark.parametrize(
    ("status", "code", "kind", "said"),
    [
        (404, "NoSuchBucket", ConfigError, "create it"),
        (403, "AccessDenied", StoreUnavailable, "allow"),
        (403, "RequestTimeTooSkewed", StoreUnavailable, "set the clock"),
        (403, "SignatureDoesNotMatch", ConfigError, "secret"),
        (400, "KeyTooLongError", UsageError, "shorter"),
        (400, "MetadataTooLarge", UsageError, "less"),
        (507, "InsufficientStorage", StoreUnavailable, "room"),
        (418, "Teapot", StoreUnavailable, "Teapot"),
    ],
)
def test_each_refusal_says_what_to_do(status: int, code: str, kind: type[Exception], said: str) -> None:
    failure = failure_of(status, {}, f"<Error><Code>{code}</Code></Error>".encode())
    assert failure is not None
    error = failure.error(HERE, of_object=True)
    assert (isinstance(error, kind), said in str(error), "my-bucket" in str(error)) == (True, True, True)


def test_a_bucket_elsewhere_is_told_with_its_region() -> None:
    failure = failure_of(301, {"x-amz-bucket-region": "eu-west-1"}, b"")
    assert failure is not None
    assert "region=eu-west-1" in str(failure.error(HERE, of_object=True))


# Addresses and credentials


@pytest.mark.parametrize(
    ("rest", "origin"),
    [
        ("b-b?region=eu-west-1", ("https", "b-b.s3.eu-west-1.amazonaws.com", "")),
        ("b.b?region=eu-west-1", ("https", "s3.eu-west-1.amazonaws.com", "/b.b")),
        ("bbb/p?endpoint=http://127.0.0.1:9000", ("http", "127.0.0.1:9000", "/bbb")),
        ("bbb/p?endpoint=http://h:9/base/&style=host", ("http", "bbb.h:9", "/base")),
    ],
)
def test_requests_go_to_the_host_or_the_path_of_the_bucket(rest: str, origin: tuple[str, str, str]) -> None:
    address = S3Address.parse(rest)
    found = address.origin(address.region)
    assert (found.scheme, found.host, found.path) == origin


@pytest.mark.parametrize(
    "rest", ["", "b", "b/p", "bbb?endpoint=host", "bbb?style=x", "bbb?access_key=k", "bbb?regoin=x"]
)
def test_what_names_no_bucket_is_refused(rest: str) -> None:
    with pytest.raises(UsageError):
        S3Address.parse(rest)


def test_no_secret_is_in_the_text_of_an_address() -> None:
    address = S3Address.parse("bbb?access_key=k&secret_key=hidden&session_token=hidden")
    assert ("hidden" in repr(address), "hidden" in str(address)) == (False, False)


async def test_credentials_come_from_the_url_the_environment_or_the_profile_in_this_order(
    tmp_path: Path,
) -> None:
    keys = "aws_access_key_id = file\naws_secret_access_key = s"
    (tmp_path / "c").write_text(f"[default]\n{keys}\n[other]\nregion = x-1\n")
    profile = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "c"), "AWS_CONFIG_FILE": str(tmp_path / "none")}
    named = {**profile, "AWS_ACCESS_KEY_ID": "env", "AWS_SECRET_ACCESS_KEY": "s"}
    url = S3Address.parse("bbb?access_key=url&secret_key=s")
    found = [
        (await CredentialSource(address, ManualClock(), environ).credentials()).key
        for address, environ in ((url, named), (HERE, named), (HERE, profile))
    ]
    profiles = ({"AWS_PROFILE": "other"}, {})
    regions = [CredentialSource(HERE, ManualClock(), profile | more).region() for more in profiles]
    assert (found, regions) == (["url", "env", "file"], ["x-1", "us-east-1"])


def test_the_environment_may_name_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3")
    own = S3Address("bbb", endpoint="http://own")
    assert [address.reached().endpoint for address in (HERE, own)] == ["http://s3", "http://own"]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "nonsense")
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL_S3 is not an address"):
        HERE.reached()


# Time


@given(off=st.integers(-3600_000, 3600_000), took=st.integers(0, 5000))
def test_the_time_of_the_store_is_known_to_a_second_and_the_time_a_request_took(off: int, took: int) -> None:
    clock = ManualClock(datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC))
    ahead, store = timedelta(milliseconds=off), StoreClock(clock)
    sent_at = clock.now()
    said = format_datetime((sent_at + ahead + timedelta(milliseconds=took / 2)).replace(microsecond=0), usegmt=True)
    clock.advance(timedelta(milliseconds=took))
    store.learn(said, sent_at, clock.now())
    assert abs(store.now() - (clock.now() + ahead)) <= timedelta(seconds=1, milliseconds=took)


@pytest.mark.parametrize("hours", [-2, 2])
async def test_a_machine_whose_clock_is_off_learns_the_time_from_the_store(hours: int) -> None:
    async with scene() as now:
        off = ManualClock(now.clock.now() + timedelta(hours=hours))
        backend = await S3.open(S3Address("bucket", "", now.server.endpoint, access_key="k", secret_key="s"), off)
        pulse = await backend.health_sample()
        await backend.close()
        assert abs(pulse.at - now.clock.now()) <= backend.margin


@pytest.mark.parametrize("hours", [-2, 2])
async def test_what_is_due_comes_with_the_time_of_the_store_after_the_clock_of_the_machine_was_set(hours: int) -> None:
    async with scene() as now:
        own = ManualClock(now.clock.now())
        backend = await S3.open(S3Address("bucket", "", now.server.endpoint, access_key="k", secret_key="s"), own)
        records = backend.records(Collection.named("things"))
        await records.create("a", b"{}", due_at=now.clock.now() + timedelta(hours=1))
        own.step(timedelta(hours=hours))
        page = await records.due(None, None, 10)
        await backend.close()
        assert abs(page.at - now.clock.now()) <= backend.margin


async def test_a_store_that_was_closed_says_so() -> None:
    async with scene() as now:
        backend = await now.another()
        await backend.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await backend.objects.head("a")


def test_a_local_clock_that_agrees_is_believed_and_one_that_is_set_is_noticed() -> None:
    clock, seen = ManualClock(), []
    store = StoreClock(clock)
    true = ManualClock()
    for step in (0, 0, 60, 0, -60):
        clock.step(timedelta(seconds=step))
        store.learn(format_datetime(true.now(), usegmt=True), clock.now(), clock.now())
        seen.append(abs(store.now() - true.now()) <= timedelta(seconds=1))
    store.learn("yesterday", clock.now(), clock.now())
    assert (seen, store.now()) == ([True] * 5, true.now())
