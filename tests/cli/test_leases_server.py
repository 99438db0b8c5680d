"""Every `wrasse leases` command asks `leases.server` where it is set, as programs do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import wrasse as package
from cli.command_line import wrasse
from processes.daemons import running


@pytest.fixture
def served(place: Path) -> Iterator[Path]:
    """A directory whose settings name a lease server that runs in another."""
    home = place / "server"
    home.mkdir()
    (home / "wrasse.yaml").write_text("backends: {records: 'file:data'}\nleases: {listen: '127.0.0.1:0', token: s3}")
    with running(home, "--role=leases") as daemon:
        server = f"http://{daemon.said('started')['leases']}"
        (place / "wrasse.yaml").write_text(f"leases: {{server: '{server}', token: s3}}")
        yield place


def test_a_lease_of_a_command_and_one_of_a_program_exclude_each_other(served: Path) -> None:
    taken = wrasse("leases", "acquire", "orders/42", "--owner=me", "--ttl=1m", "--json").json
    holder = (f"--lease={taken['lease']}", f"--token={taken['token']}", f"--transaction={taken['transaction']}")

    async def program() -> object:
        async with package.connect("wrasse.yaml") as app, app.lease("orders/42", wait="0s") as lease:
            return lease.state

    with pytest.raises(package.WrasseError):
        asyncio.run(program())
    assert wrasse("leases", "keep", "orders/42", "--ttl=1m", *holder).code == 0
    assert wrasse("leases", "update", "orders/42", '{"paid": true}', *holder).code == 0
    shown = wrasse("leases", "show", "orders/42", "--json").json
    assert (shown["lease"]["owner"], shown["version"]) == ("me", 0)
    listed = wrasse("leases", "list", "--json").json
    assert [(each["key"], each["lease"]["id"]) for each in listed["keys"]] == [("orders/42", taken["lease"])]
    assert wrasse("leases", "release", "orders/42", *holder, "--json").json["released"]
    assert asyncio.run(program()) == {"paid": True}
    assert wrasse("leases", "get", "orders/42").out.strip() == '{"paid":true}'


def test_files_of_a_key_are_at_the_server(served: Path) -> None:
    taken = wrasse("leases", "acquire", "orders/42", "--ttl=1m", "--json").json
    holder = (f"--lease={taken['lease']}", f"--token={taken['token']}", f"--transaction={taken['transaction']}")
    (served / "note.txt").write_text("hello")
    assert wrasse("leases", "attach", "orders/42", "note.txt", *holder).code == 0
    assert "note.txt" in wrasse("leases", "attachments", "orders/42", *holder).out
    assert wrasse("leases", "release", "orders/42", *holder).code == 0
    assert wrasse("leases", "fetch", "orders/42", "note.txt").out == "hello"
    assert sorted(os.listdir(served)) == ["note.txt", "server", "wrasse.yaml"]


def test_a_holder_at_a_server_is_asked_for_token_and_transaction(served: Path) -> None:
    answer = wrasse("leases", "release", "orders/42", "--lease=d5arif5qkajneqfrmsb0")
    assert (answer.code, "add --token and --transaction" in answer.err) == (2, True)


@pytest.mark.parametrize(
    "args", [("fsck",), ("messages", "mail"), ("list", "--namespaces"), ("transaction", "d5arif5qkajneqfrmsb0")]
)
def test_what_reads_the_store_itself_is_refused_and_says_where_to_run_it(served: Path, args: tuple[str, ...]) -> None:
    answer = wrasse("leases", *args)
    assert (answer.code, "needs the store behind it" in answer.err) == (2, True)
    assert "leases.server" in answer.err
    assert sorted(os.listdir(served)) == ["server", "wrasse.yaml"]
