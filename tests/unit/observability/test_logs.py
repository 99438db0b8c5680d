"""Logs: canonical keys, an allow-list, and nothing lost without being counted."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from wrasse.clock import ManualClock
from wrasse.errors import BadPayload, StoreUnavailable
from wrasse.observability.logs import LINES_MAX, LogHandler, LogTally, describe, hear_strangers, scrub, start_logging

PAYLOAD = "PLANTED-payload-7f3a"
SECRET = "PLANTED-secret-91cc"
PATH = "/home/planted/customers/list.csv"


class Logged:
    """A logger of ours, its lines and its clock."""

    def __init__(self) -> None:
        self.out = io.StringIO()
        self.clock = ManualClock()
        self.handler, self.tally = start_logging("debug", stream=self.out, clock=self.clock)
        self.log = logging.getLogger("wrasse.test")

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.getvalue().splitlines()]


@pytest.fixture
def logged() -> Iterator[Logged]:
    own, root = logging.getLogger("wrasse"), logging.getLogger()
    before = (own.handlers, own.propagate, own.level, root.handlers)
    root.handlers = []
    logged = Logged()
    hear_strangers(logged.handler)
    yield logged
    own.handlers, own.propagate, own.level, root.handlers = before


def test_a_line_is_one_json_object_with_level_time_and_message(logged: Logged) -> None:
    logged.log.warning("worker silent", extra={"worker_id": "w-1", "queue": "high"})
    (line,) = logged.lines
    assert (line["level"], line["msg"], line["worker_id"], line["queue"]) == ("warn", "worker silent", "w-1", "high")
    assert str(line["ts"]).endswith("Z")


def test_a_key_that_is_not_allowed_is_dropped_and_counted(logged: Logged) -> None:
    logged.log.info("put", extra={"payload": PAYLOAD, "email": "a@b.c", "job_id": "j"})
    (line,) = logged.lines
    assert set(line) == {"level", "ts", "msg", "job_id"}
    assert logged.tally.dropped_keys == 2


def test_planted_payloads_secrets_and_paths_never_reach_a_line(logged: Logged) -> None:
    logging.getLogger("shop.handlers").error("failed on %s", PAYLOAD)
    logged.log.error("no file", extra={"reason": f"cannot open {PATH}"})
    logged.log.error("down", extra={"error": f"redis://user:{SECRET}@host:6379/0 is down"})
    logged.log.error("job", extra={"job_id": PATH})
    try:
        raise ValueError(f"bad {PAYLOAD} in {PATH}")
    except ValueError:
        logged.log.exception("handler raised")
    logging.getLogger("asyncio").error(f"Task exception was never retrieved\nfuture: {PAYLOAD}")
    logging.getLogger("stranger").warning("request %s", PATH)
    text = logged.out.getvalue()
    assert len(logged.lines) == 7
    assert not [planted for planted in (PAYLOAD, SECRET, PATH, "customers") if planted in text]


def test_an_error_of_ours_is_told_in_its_words_and_a_strangers_by_its_type() -> None:
    assert describe(StoreUnavailable(f"{PATH} did not answer in 2s")) == "StoreUnavailable: <path> did not answer in 2s"
    assert describe(KeyError(PAYLOAD)) == "KeyError"
    assert describe(BadPayload(PAYLOAD)) == "BadPayload"


def test_text_without_a_path_stays_as_it_is() -> None:
    text = "5 jobs/s of application/json from sweep/stuck_jobs at 10.0.0.5:6379, 1/3 done"
    assert scrub(text) == text


@pytest.mark.parametrize(
    "path",
    [PATH, "~/x/y", "./a/b.db", "../up/z", "'/etc/passwd'", "(/var/x)", "sqlite:///home/y.db", "C:\\Users\\x"],
)
def test_a_path_is_taken_out_of_a_text(path: str) -> None:
    assert not any(part in scrub(f"see {path} there") for part in ("home", "y", "b.db", "up", "passwd", "var", "Users"))


def test_a_flood_is_cut_and_what_was_left_out_is_counted(logged: Logged) -> None:
    for _ in range(LINES_MAX + 40):
        logged.log.info("again and again")
    logged.handler.settle()
    said = [line for line in logged.lines if line["msg"] == "suppressed"]
    assert len(logged.lines) == LINES_MAX + 1
    assert [(line["of"], line["count"]) for line in said] == [("again and again", 40)]
    assert logged.tally.suppressed_lines == 40


def test_a_flood_that_ended_is_told_with_the_next_line(logged: Logged) -> None:
    from datetime import timedelta

    for _ in range(LINES_MAX + 1):
        logged.log.info("flood")
    logged.clock.advance(timedelta(seconds=1))
    logged.log.info("calm")
    assert [line["msg"] for line in logged.lines[-2:]] == ["suppressed", "calm"]


def test_every_line_is_either_written_or_counted_whatever_their_order(logged: Logged) -> None:
    from datetime import timedelta

    total = 0
    for step in range(5):
        for message in range(7):
            for _ in range(30 * message):
                logged.log.info(f"message {message}")
                total += 1
        logged.clock.advance(timedelta(seconds=step % 2))
    logged.handler.settle()
    counted = sum(int(str(line["count"])) for line in logged.lines if line["msg"] == "suppressed")
    written = sum(1 for line in logged.lines if line["msg"] != "suppressed")
    assert written + counted == total


def test_strangers_are_heard_only_when_they_warn(logged: Logged) -> None:
    logging.getLogger("aiohttp.access").info("GET /")
    logging.getLogger("aiohttp").warning("slow %s", "x")
    assert [(line["logger"], line["msg"]) for line in logged.lines] == [("aiohttp", "slow %s")]


def test_loggers_that_the_user_has_set_up_are_left_alone(logged: Logged) -> None:
    theirs = logging.StreamHandler(io.StringIO())
    logging.getLogger().handlers = [theirs]
    hear_strangers(logged.handler)
    logging.getLogger("shop").warning("theirs")
    logged.log.warning("ours")
    assert theirs.stream.getvalue() == "theirs\n"
    assert [line["msg"] for line in logged.lines] == ["ours"]


def test_a_closed_stderr_stops_nothing_and_is_counted() -> None:
    out = io.StringIO()
    tally = LogTally()
    handler = LogHandler(out, ManualClock(), tally)
    out.close()
    handler.emit(logging.makeLogRecord({"msg": "gone", "levelno": logging.INFO, "name": "wrasse"}))
    assert tally.suppressed_lines == 1
