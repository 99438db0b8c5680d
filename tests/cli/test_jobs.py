"""wrasse jobs, as a user types it."""

from __future__ import annotations

import string
from pathlib import Path

import pytest

from cli.command_line import typed, wrasse

EVERY_BYTE = bytes(range(256))
pytestmark = pytest.mark.usefixtures("place")


def enqueue(*args: str, stdin: bytes = b"") -> str:
    answer = wrasse("jobs", "enqueue", "--json", *args, stdin=stdin)
    assert answer.code == 0, answer.err
    return str(answer.json["jobs"][0]["id"])


def payload_of(id: str) -> bytes:
    return wrasse("jobs", "show", id, "--payload").raw


def job_state_of(id: str) -> str:
    return str(wrasse("jobs", "show", id, "--json").json["state"])


def test_an_enqueued_job_is_listed_and_shown() -> None:
    id = enqueue("--kind=resize", '{"path": "a.png"}', "--header=tenant=7", "--timeout=5m")
    (listed,) = wrasse("jobs", "list", "--state=ready", "--json").json["jobs"]
    assert (listed["id"], listed["kind"], listed["queue"]) == (id, "resize", "low")
    shown = wrasse("jobs", "show", id, "--json").json
    assert (shown["payload"], shown["headers"], shown["timeout"]) == ('{"path": "a.png"}', {"tenant": "7"}, 300.0)


@pytest.mark.parametrize("size", [0, 1, 16 << 20], ids=["empty", "one byte", "16 MiB"])
def test_a_payload_comes_back_byte_for_byte(size: int) -> None:
    data = (EVERY_BYTE * (size // 256 + 1))[:size]
    assert payload_of(enqueue(stdin=data)) == data


def test_a_dash_in_the_place_of_the_payload_is_stdin() -> None:
    assert payload_of(enqueue("-", stdin=b"from a pipe")) == b"from a pipe"


def test_a_payload_of_every_byte_comes_back_from_a_file() -> None:
    Path("data.bin").write_bytes(EVERY_BYTE)
    assert payload_of(enqueue("--file=data.bin")) == EVERY_BYTE


def test_an_empty_argument_is_an_empty_payload() -> None:
    assert payload_of(enqueue("")) == b""


def test_a_payload_beyond_the_limit_is_refused_and_nothing_is_enqueued() -> None:
    answer = wrasse("jobs", "enqueue", stdin=b"x" * ((16 << 20) + 1))
    assert answer.code == 2
    assert "larger than 16777216 bytes" in answer.err
    assert wrasse("jobs", "list", "--json").json["jobs"] == []


def test_an_id_may_hold_every_printable_character() -> None:
    printable = "".join(c for c in string.printable if c.isprintable()) + "äß漢🐟"
    id = enqueue(f"--id={printable}", "x")
    assert id == printable
    assert payload_of(printable) == b"x"
    assert wrasse("jobs", "cancel", "--json", "--", printable).json["changed"] == [printable]


@pytest.mark.parametrize("id", ["a\nb", "\x1b[31m", "x" * 256, ""])
def test_an_id_that_cannot_be_kept_is_one_clear_error(id: str) -> None:
    answer = wrasse("jobs", "enqueue", f"--id={id}", "x")
    assert answer.code == 2
    assert answer.err.startswith("error: the id of a job")
    assert "do: use 1 to 255 bytes" in answer.err


def test_an_id_that_is_known_is_not_put_again() -> None:
    enqueue("--id=once", "first")
    answer = wrasse("jobs", "enqueue", "--id=once", "second", "--json")
    assert answer.json == {"enqueued": 0, "known": 1, "jobs": [{"id": "once", "new": False}]}
    assert payload_of("once") == b"first"


def test_lines_become_jobs_in_their_order() -> None:
    answer = wrasse("jobs", "enqueue", "--lines", "--json", stdin=b"one\n\ntwo\r\nthree")
    assert [payload_of(job["id"]) for job in answer.json["jobs"]] == [b"one", b"two", b"three"]


def test_a_line_of_spaces_is_a_payload_and_an_empty_one_is_none() -> None:
    assert wrasse("jobs", "enqueue", "--json", "--lines", stdin=b"  \n\n\tx\r\n").json["enqueued"] == 2


def test_json_lines_describe_jobs() -> None:
    lines = b"""
    {"kind": "mail", "data": {"to": "x"}, "id": "m", "priority": "high", "headers": {"a": "b"}}
    {"payload_b64": "AP8=", "id": "raw", "queue": "other", "delay": "1h", "timeout": "5s"}
    """
    assert wrasse("jobs", "enqueue", "--json-lines", "--json", stdin=lines).json["enqueued"] == 2
    mail, raw = (wrasse("jobs", "show", id, "--json").json for id in ("m", "raw"))
    assert (mail["kind"], mail["payload"], mail["queue"], mail["headers"]) == ("mail", '{"to":"x"}', "high", {"a": "b"})
    assert (raw["payload_b64"], raw["queue"], raw["timeout"]) == ("AP8=", "other", 5.0)
    assert [job["id"] for job in wrasse("jobs", "list", "--state=scheduled", "--json").json["jobs"]] == ["raw"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 2: not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"kinds": "x"}', "'kinds'"),
        (b'{"payload_b64": "*"}', "base 64"),
        (b'{"delay": "5"}', "no unit"),
        (b'{"priority": "hihg"}', "'hihg'"),
        (b'{"headers": [1]}', "headers"),
        (b'{"id": "a\\nb"}', "the id"),
    ],
)
def test_a_line_that_describes_no_job_is_named_by_its_number(line: bytes, words: str) -> None:
    answer = wrasse("jobs", "enqueue", "--json-lines", stdin=b'{"id": "good"}\n' + line)
    assert answer.code == 2
    assert "line 2" in answer.err
    assert words in answer.err
    assert wrasse("jobs", "list", "--json").json["jobs"] == [], "a piece is enqueued whole or not at all"


def test_what_was_put_before_a_bad_line_is_told() -> None:
    lines = b"".join(b'{"id": "%d"}\n' % n for n in range(1500)) + b"{"
    answer = wrasse("jobs", "enqueue", "--json-lines", stdin=lines)
    assert "line 1501" in answer.err
    assert "1000 jobs before it were enqueued and stay" in answer.err


@pytest.mark.parametrize(
    "args", [("x", "--file=y"), ("--lines", "--json-lines"), ("--lines", "--id=a"), ("x", "--lines")]
)
def test_options_that_exclude_each_other_are_a_usage_error(args: tuple[str, ...]) -> None:
    answer = wrasse("jobs", "enqueue", *args)
    assert (answer.code, "do: " in answer.err) == (2, True)


@pytest.mark.parametrize(("first", "kind"), [("resize", "resize"), ("{1", "KIND")])
def test_a_kind_given_as_an_argument_is_told_the_option(first: str, kind: str) -> None:
    answer = wrasse("jobs", "enqueue", first, "payload")
    assert (answer.code, wrasse("jobs", "list", "--state=ready", "--json").json["jobs"]) == (2, [])
    assert "there are 2 arguments" in answer.err
    assert f"--kind={kind} PAYLOAD" in answer.err


def test_pages_go_on_where_the_last_one_ended() -> None:
    wrasse("jobs", "enqueue", "--lines", stdin=b"\n".join(b"%d" % n for n in range(7)))
    seen: list[str] = []
    after: list[str] = []
    while True:
        page = wrasse("jobs", "list", "--state=ready", "--limit=3", "--json", *after).json
        seen += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        after = [f"--after={page['next']}"]
    assert len(seen) == len(set(seen)) == 7


def test_peek_shows_the_next_job_first_and_high_before_low() -> None:
    for id, priority in (("a", "low"), ("b", "high"), ("c", "low")):
        enqueue(f"--id={id}", f"--priority={priority}", f"payload of {id}")
    jobs = wrasse("jobs", "peek", "--json").json["jobs"]
    assert [(job["id"], job["payload"]) for job in jobs] == [(id, f"payload of {id}") for id in "bac"]
    assert "payload of b" in wrasse("jobs", "peek", "high").out


def test_a_cancelled_job_is_dead_and_can_be_requeued() -> None:
    enqueue("--id=a", "x")
    assert wrasse("jobs", "cancel", "a", "--why=wrong size").code == 0
    (dead,) = wrasse("jobs", "dead", "--json").json["jobs"]
    assert (dead["id"], dead["reason"], dead["error"]) == ("a", "cancelled", "wrong size")
    assert wrasse("jobs", "requeue", "a").out == "requeued 1 job\n"
    assert job_state_of("a") == "ready"


def test_cancelling_what_is_finished_fails() -> None:
    enqueue("--id=a", "x")
    wrasse("jobs", "cancel", "a")
    answer = wrasse("jobs", "cancel", "a")
    assert answer.code == 1
    assert "not changed" in answer.out


def test_requeue_of_all_takes_only_what_the_filters_let_through() -> None:
    for id in ("a", "b", "c"):
        enqueue(f"--id={id}", f"--kind={id}", "x")
        wrasse("jobs", "cancel", id)
    dry = wrasse("jobs", "requeue", "--all", "--kind=b", "--dry-run", "--json").json
    assert (dry["changed"], job_state_of("b")) == (["b"], "dead")
    wrasse("jobs", "requeue", "--all", "--kind=b")
    assert [job_state_of(id) for id in "abc"] == ["dead", "ready", "dead"]


def test_requeue_of_a_job_that_is_not_dead_changes_none_of_those_named() -> None:
    enqueue("--id=a", "x")
    enqueue("--id=b", "x")
    wrasse("jobs", "cancel", "a")
    answer = wrasse("jobs", "requeue", "a", "b")
    assert (answer.code, job_state_of("a")) == (2, "dead")
    assert "'b' is ready, not dead" in answer.err


def test_purge_is_refused_without_yes_and_shows_what_it_would_delete() -> None:
    enqueue("--id=a", "x")
    wrasse("jobs", "cancel", "a")
    assert wrasse("jobs", "purge", "dead").code == 3
    assert "would delete a" in wrasse("jobs", "purge", "dead", "--dry-run").out
    assert job_state_of("a") == "dead"
    assert wrasse("jobs", "purge", "dead", "--yes").out == "deleted 1 job\n"
    assert wrasse("jobs", "show", "a").code == 2


def test_purge_leaves_what_is_younger_or_elsewhere() -> None:
    enqueue("--id=a", "x")
    enqueue("--id=b", "x")
    wrasse("jobs", "cancel", "a")
    assert wrasse("jobs", "purge", "dead", "--older=1h", "--yes", "--json").json["count"] == 0
    assert (job_state_of("a"), job_state_of("b")) == ("dead", "ready")


def test_running_jobs_cannot_be_named_for_purge() -> None:
    assert wrasse("jobs", "purge", "running", "--yes").code == 2


def test_a_job_whose_time_has_not_come_is_scheduled_wherever_it_is_shown() -> None:
    enqueue("--id=later", "--delay=1h", "x")
    (listed,) = wrasse("jobs", "list", "--json").json["jobs"]
    shown, explained = wrasse("jobs", "show", "later", "--json").json, wrasse("explain", "later", "--json").json["job"]
    assert {each["state"] for each in (listed, shown, explained)} == {"scheduled"}
    assert listed["not_before"] == shown["not_before"] is not None
    for text in (wrasse("jobs", "show", "later").out, wrasse("explain", "later").out):
        assert "scheduled, due in 59m59s" in text
    assert "'later' is scheduled, not dead" in wrasse("jobs", "requeue", "later").err


def test_jobs_are_listed_by_state() -> None:
    enqueue("--id=now", "x")
    enqueue("--id=later", "--delay=1h", "x")
    enqueue("--id=gone", "x")
    wrasse("jobs", "cancel", "gone")
    states = ("ready", "scheduled", "running", "done", "dead")
    found = {state: wrasse("jobs", "list", f"--state={state}", "--json").json["jobs"] for state in states}
    ids = {state: [job["id"] for job in jobs if job["state"] == state] for state, jobs in found.items()}
    assert ids == {"ready": ["now"], "scheduled": ["later"], "running": [], "done": [], "dead": ["gone"]}
    assert "scheduled" in wrasse("jobs", "list", "--state=scheduled").out


def test_stats_count_every_state() -> None:
    enqueue("--id=a", "--priority=high", "x")
    enqueue("--id=b", "--delay=1h", "x")
    enqueue("--id=c", "x")
    wrasse("jobs", "cancel", "c")
    queues = {each["queue"]: each for each in wrasse("jobs", "stats", "--json").json["queues"]}
    assert (queues["high"]["ready"], queues["low"]["scheduled"], queues["low"]["dead"]) == (1, 1, 1)


def test_an_unknown_job_is_answered_with_the_nearest() -> None:
    enqueue("--id=resize-a", "x")
    answer = wrasse("jobs", "show", "resise-a")
    assert (answer.code, "write 'resize-a'" in answer.err) == (2, True)


def test_what_a_job_says_of_itself_cannot_draw_on_the_terminal() -> None:
    enqueue("--id=a", "x")
    wrasse("jobs", "cancel", "a", "--why=\x1b[2J\nfake line")
    text = wrasse("jobs", "dead").out + wrasse("jobs", "show", "a").out
    assert "\x1b" not in text
    assert "\nfake line" not in text


def test_put_works_as_a_process_of_its_own(place: Path) -> None:
    answer = typed("jobs", "enqueue", "--id=a", stdin=EVERY_BYTE, cwd=place)
    assert (answer.code, answer.out) == (0, "a\n")
    assert typed("jobs", "show", "a", "--payload", cwd=place).raw == EVERY_BYTE
