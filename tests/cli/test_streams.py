"""wrasse streams, as a user types it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.command_line import Answer, typed, wrasse
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.ports.streams import Draft

EVERY_BYTE = bytes(range(256))
S = "gbe.events.audit.change"
pytestmark = pytest.mark.usefixtures("place")


def publish(*args: str, stdin: bytes = b"") -> list[str]:
    answer = wrasse("streams", "publish", "--json", *args, stdin=stdin)
    assert answer.code == 0, answer.err
    return list(answer.json["message_ids"])


def lines(answer: Answer) -> list[dict[str, object]]:
    assert answer.code == 0, answer.err
    return [json.loads(line) for line in answer.out.splitlines()]


def read(*args: str) -> list[dict[str, object]]:
    return lines(wrasse("streams", "read", "--json", *args))


def payloads(*args: str) -> list[object]:
    return [message["payload"] for message in read(*args)]


def info(*args: str) -> list[dict[str, object]]:
    answer = wrasse("streams", "info", "--json", *args)
    assert answer.code == 0, answer.err
    return list(answer.json["streams"])


# Publishing


def test_a_published_message_is_read_back_with_its_id() -> None:
    (id,) = publish(S, '{"user": 7}', "--trace-id=t-1")
    (message,) = read(S)
    assert (message["message_id"], message["payload"], message["trace_id"]) == (id, '{"user": 7}', "t-1")


def test_a_person_gets_the_id_and_a_line_per_message() -> None:
    id = wrasse("streams", "publish", S, "hello").out.strip()
    (line,) = wrasse("streams", "read", S).out.splitlines()
    assert len(id) == 26
    assert line.split()[3:] == [S, id, "hello"]


def test_payload_bytes_come_from_stdin_unchanged() -> None:
    publish(S, stdin=EVERY_BYTE)
    (message,) = read(S)
    assert message["payload"] is None
    assert message["payload_b64"] == base64.b64encode(EVERY_BYTE).decode()


def test_a_payload_comes_from_a_file() -> None:
    Path("letter.txt").write_text("dear")
    publish(S, "--file=letter.txt")
    assert payloads(S) == ["dear"]


def test_every_line_is_a_message() -> None:
    ids = publish(S, "--lines", stdin=b"a\n\nb\r\nc")
    assert ([m["message_id"] for m in read(S)], payloads(S)) == (ids, ["a", "b", "c"])


def test_json_lines_say_subject_data_key_and_trace() -> None:
    described = [
        {"data": {"n": 1}, "trace_id": "t"},
        {"subject": "other", "payload_b64": "/w=="},
        {"subject": "other", "data": 1, "key": "k"},
        {"subject": "other", "data": 2, "key": "k"},
    ]
    publish(S, "--json-lines", stdin="\n".join(map(json.dumps, described)).encode())
    assert [(m["payload"], m["trace_id"]) for m in read(S)] == [('{"n":1}', "t")]
    assert [m["payload_b64"] for m in read("other")] == ["/w==", "MQ=="]


def test_one_key_publishes_once() -> None:
    assert publish(S, "a", "--key=k") == publish(S, "b", "--key=k")
    assert payloads(S) == ["a"]


def test_many_messages_go_through_and_are_counted() -> None:
    answer = wrasse("streams", "publish", S, "--lines", stdin=b"".join(b"%d\n" % n for n in range(2_500)))
    assert (answer.out, len(read(S))) == ("published 2500 messages\n", 2_500)


@pytest.mark.parametrize(
    ("args", "stdin", "says"),
    [
        (("a:b", "x"), b"", "':'"),
        (("a b", "x"), b"", "' '"),
        (("a..b", "x"), b"", "empty token"),
        (("a.*", "x"), b"", "'*'"),
        ((S, "x", "--lines"), b"", "two payloads"),
        ((S, "--lines", "--json-lines"), b"", "exclude each other"),
        ((S, "--lines", "--key=k"), b"a", "one key"),
        ((S, "--file=missing"), b"", "missing cannot be read"),
        ((S, "--json-lines"), b"{}\nnope", "line 2: not JSON"),
        ((S, "--json-lines"), b"[]", "line 1: not a JSON object"),
        ((S, "--json-lines"), b'{"dta": 1}', "write 'data'"),
        ((S, "--json-lines"), b'{"payload_b64": "?"}', "not base 64"),
        ((S, "--json-lines"), b'{"subject": "a:b"}', "line 1"),
        ((S,), b"x" * ((1 << 20) + 1), "larger than 1048576 bytes"),
        ((S, "--lines"), b"x" * ((1 << 20) + 1), "line 1"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else str(value)[:40],
)
def test_a_mistake_is_said_and_nothing_is_published(args: tuple[str, ...], stdin: bytes, says: str) -> None:
    answer = wrasse("streams", "publish", *args, stdin=stdin)
    assert (answer.code, says in answer.err, "do: " in answer.err) == (2, True, True), answer.err
    assert info() == []


def test_what_came_before_a_bad_line_is_published_and_said() -> None:
    answer = wrasse("streams", "publish", S, "--json-lines", stdin=b'{"data": 1}\n' * 1_000 + b"nope")
    assert answer.code == 2
    assert "line 1001" in answer.err
    assert "1000 messages before it are published" in answer.err
    assert len(read(S)) == 1_000


# Reading


def test_reading_without_a_group_changes_nothing() -> None:
    publish(S, "--lines", stdin=b"a\nb")
    before = info()
    assert payloads(S) == payloads(S) == ["a", "b"]
    assert info() == before


def test_reading_what_is_not_there_shows_nothing_and_makes_nothing() -> None:
    assert (read("no.such"), info()) == ([], [])


def test_a_pattern_reads_all_streams_that_match_in_the_order_of_time() -> None:
    for n, subject in enumerate(["a.x", "b.x", "a.x", "c.y"]):
        publish(subject, str(n))
    assert payloads("*.x") == ["0", "1", "2"]
    assert payloads(">") == ["0", "1", "2", "3"]


def test_reading_begins_where_it_is_told() -> None:
    publish(S, "--lines", stdin=b"a\nb\nc")
    second = str(read(S)[1]["entry_id"])
    assert payloads(S, f"--from={second}") == ["c"]
    assert payloads(S, "--from=last") == []
    assert payloads(S, "--from=1h") == ["a", "b", "c"]
    assert payloads(S, "--limit=2") == ["a", "b"]


@pytest.mark.parametrize("start", ["yesterday", "5", "1-2-3", ""])
def test_a_place_that_is_none_is_refused(start: str) -> None:
    answer = wrasse("streams", "read", S, f"--from={start}")
    assert (answer.code, "is not a position in a stream" in answer.err) == (2, True)


def test_a_group_goes_on_where_it_was() -> None:
    publish(S, "--lines", stdin=b"a\nb\nc")
    assert payloads(S, "--group=g", "--limit=2") == ["a", "b"]
    assert payloads(S, "--group=g") == ["c"]
    assert payloads(S, "--group=g") == []
    assert payloads(S, "--group=other", "--from=last") == []


def test_a_group_reads_all_streams_that_match() -> None:
    publish("a.x", "1")
    publish("b.x", "2")
    assert payloads("*.x", "--group=g") == ["1", "2"]
    assert [stream["groups"][0]["pending"] for stream in info()] == [0, 0]


def test_a_reader_leaves_its_group() -> None:
    publish(S, "a")
    read(S, "--group=g")
    (stream,) = info()
    assert stream["groups"][0]["consumers"] == 0


def test_what_is_not_a_message_is_shown_as_its_bytes(place: Path) -> None:
    publish(S, "a")

    async def write() -> None:
        store = await Sqlite.open(place / "wrasse.db")
        await store.streams.append([Draft(S, b"raw\x07\x1b[31m", fields={"reason": b"why"})])
        await store.close()

    asyncio.run(write())
    assert [(m["message_id"] is None, m["payload"]) for m in read(S)] == [(False, "a"), (True, "raw\x07\x1b[31m")]
    assert not {"\x1b", "\x07"} & set(wrasse("streams", "read", S).out)


def test_of_an_entry_without_a_body_the_fields_are_shown(place: Path) -> None:
    publish(S, "a")

    async def write() -> None:
        store = await Sqlite.open(place / "wrasse.db")
        await store.streams.append([Draft(S, b"", fields={"user": b"ann", "did": b"pay"})])
        await store.close()

    asyncio.run(write())
    assert wrasse("streams", "read", S).out.splitlines()[1].endswith("  -  user=ann did=pay")


def test_following_shows_what_comes_and_ends_with_a_signal(place: Path) -> None:
    publish(S, "old")
    following = subprocess.Popen(
        [sys.executable, "-m", "wrasse", "streams", "read", "gbe.>", "--follow", "--json", "--from=last"],
        cwd=place,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    )
    assert following.stdout is not None
    try:
        seen: list[object] = []
        # It begins at some moment; what is published after that moment is shown, so publish until something is.
        os.set_blocking(following.stdout.fileno(), False)
        for n in range(600):
            publish("gbe.new.stream", str(n))
            if data := following.stdout.read():
                seen = [json.loads(line)["payload"] for line in data.splitlines()]
                break
        following.send_signal(signal.SIGTERM)
        assert following.wait(30) == 0
    finally:
        following.kill()
        following.wait()
        following.stdout.close()
    assert seen
    assert "old" not in seen


def test_a_reader_that_has_seen_enough_is_no_failure(place: Path) -> None:
    publish(S, "--lines", stdin=b"".join(b"%d\n" % n for n in range(5_000)))
    command = f"{sys.executable} -m wrasse streams read {S} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=place, capture_output=True, timeout=90, check=False)
    assert (done.returncode, done.stdout.count(b"\n"), done.stderr) == (0, 1, b"")


# Looking


def test_info_tells_length_size_age_and_groups() -> None:
    publish(S, "--lines", stdin=b"a\nb\nc")
    read(S, "--group=g", "--limit=1")
    (stream,) = info()
    assert (stream["subject"], stream["length"], stream["appended"]) == (S, 3, 3)
    (group,) = stream["groups"]
    assert (group["name"], group["pending"], group["lag"], group["floor"]) == ("g", 0, 2, stream["first"])
    text = wrasse("streams", "info").out
    assert [line.split()[0] for line in text.splitlines() if line] == ["STREAM", S, "STREAM", S]


def test_info_goes_page_by_page() -> None:
    for name in "abc":
        publish(name, "x")
    first = wrasse("streams", "info", "--limit=2", "--json").json
    assert [stream["subject"] for stream in first["streams"]] == ["a", "b"]
    assert [stream["subject"] for stream in info(f"--after={first['next']}")] == ["c"]


def test_info_of_nothing_says_so() -> None:
    assert wrasse("streams", "info", "no.such").out == "no stream matches\n"


def test_streams_live_where_the_settings_say(place: Path) -> None:
    publish(S, "a", "--set", "backends.streams=sqlite:elsewhere.db")
    assert (place / "elsewhere.db").exists()
    assert payloads(S, "--set", "backends.streams=sqlite:elsewhere.db") == ["a"]


def test_every_command_has_help_with_an_example(place: Path) -> None:
    for command in ("publish", "read", "info"):
        answer = typed("streams", command, "--help", cwd=place)
        assert (answer.code, "Examples:" in answer.out) == (0, True)
