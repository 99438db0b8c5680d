"""A limiter made of records stays exact when many ask at once over a slow network."""

from __future__ import annotations

import asyncio
import random

from faults import FaultyRecords, Network, Seeded
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.jobs.rate_limiter import BUDGETS, RecordLimiter


async def test_of_many_that_ask_at_once_no_more_are_allowed_than_the_burst() -> None:
    records = Memory(ManualClock()).records(BUDGETS)
    slow = Seeded(random.Random(1), lost_request=0, lost_reply=0, late=0, delay_max=0.005)
    limiters = [RecordLimiter(FaultyRecords(records, Network(slow))) for _ in range(8)]
    answers = await asyncio.gather(*(each.allow("files", 2, rate=50, burst=5) for each in limiters))
    assert 0 < sum(answer.count for answer in answers) <= 5
    assert all(answer.wait for answer in answers if answer.count < 2)
