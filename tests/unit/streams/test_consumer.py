"""What a consumer decides by itself."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from wrasse.clock import ManualClock
from wrasse.errors import UsageError
from wrasse.ports.groups import Delivery
from wrasse.ports.streams import Entry, EntryId
from wrasse.streams.consumer import ConsumerSettings
from wrasse.streams.delivery import HandlerCall, Received
from wrasse.streams.envelope import Envelope

SETTINGS = ConsumerSettings(nak_delay=timedelta(seconds=1), nak_delay_max=timedelta(seconds=10))


def test_a_message_that_failed_waits_twice_as_long_each_time() -> None:
    assert [SETTINGS.delay_after(n).total_seconds() for n in (1, 2, 3, 4, 5, 6)] == [1, 2, 4, 8, 10, 10]


@given(st.integers(1, 10_000))
def test_no_message_waits_longer_than_the_limit(number: int) -> None:
    assert timedelta(0) < SETTINGS.delay_after(number) <= SETTINGS.nak_delay_max


@pytest.mark.parametrize("handler", [5, None, "shop:ship"])
def test_what_cannot_be_called_is_no_handler(handler: object) -> None:
    with pytest.raises(UsageError, match="a handler of type"):
        HandlerCall(handler)  # type: ignore[arg-type]


def test_a_generator_is_no_handler() -> None:
    def yields(received: object):
        yield received

    with pytest.raises(UsageError, match="generator"):
        HandlerCall(yields)


async def test_a_plain_handler_that_gives_something_to_await_has_failed() -> None:
    async def never() -> None: ...

    delivery = Delivery(Entry(EntryId(1, 1), "s", b""), "g", "c", 1, ManualClock().now())
    envelope = Envelope("", "s", 0, b"")
    with pytest.raises(UsageError, match="something to await"):
        await HandlerCall(lambda received: never()).call(delivery, envelope, Received(delivery, envelope, None))  # type: ignore[arg-type]


async def test_a_handler_in_a_thread_cannot_end_the_process() -> None:
    def leaves(received: object) -> None:
        raise SystemExit(3)

    delivery = Delivery(Entry(EntryId(1, 1), "s", b""), "g", "c", 1, ManualClock().now())
    envelope = Envelope("", "s", 0, b"")
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await HandlerCall(leaves).call(delivery, envelope, Received(delivery, envelope, None))  # type: ignore[arg-type]


def test_functions_and_objects_with_an_async_call_run_in_the_loop() -> None:
    class Async:
        async def __call__(self, received: object) -> None: ...

    class Plain:
        def __call__(self, received: object) -> None: ...

    async def function(received: object) -> None: ...

    assert [HandlerCall(each).plain for each in (Async(), Plain(), function, print)] == [False, True, False, True]
