"""Holding a key with its state through an App, with an event loop and without."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

import wrasse.api.sync as sync
from servers.valkey import Valkey
from wrasse.api.app import connect
from wrasse.errors import ConfigError, LeaseLost
from wrasse.leases.names import BadName


@pytest.fixture(params=["memory:", "sqlite:wrasse.db"])
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(request.param)


async def test_what_was_saved_under_a_hold_is_there_for_the_next(where: str) -> None:
    async with connect(where) as app:
        async with app.lease("orders/42") as lease:
            assert lease.state is None
            await lease.save({"paid": True})
        async with app.lease("orders/42") as again:
            assert (again.state, again.token > lease.token) == ({"paid": True}, True)


async def test_who_only_takes_turns_needs_no_store_of_objects(where: str, tmp_path: Path) -> None:
    async with connect(where) as app, app.lease("orders/42"):
        pass
    assert not (tmp_path / "wrasse-data").exists()


async def test_the_same_key_of_another_namespace_is_another_key(where: str) -> None:
    async with connect(where) as app, app.lease("a", namespace="x"), app.lease("a", namespace="y", wait="0s") as lease:
        assert lease.alive


async def test_a_key_that_is_held_is_refused_when_the_wait_is_over(where: str) -> None:
    async with connect(where) as app, app.lease("a"):
        with pytest.raises(LeaseLost):
            async with app.lease("a", wait=timedelta(milliseconds=10)):
                raise AssertionError("nobody gets a key that is held")


async def test_a_key_that_is_no_name_is_a_clear_error(where: str) -> None:
    async with connect(where) as app:
        with pytest.raises(BadName):
            async with app.lease("a//b"):
                raise AssertionError("nobody holds what has no name")


def test_a_program_without_a_loop_saves_state_too(where: str) -> None:
    with sync.connect(where) as app:
        with app.lease("orders/42") as lease:
            assert lease.save([1]) == 1
            assert lease.state == [1]
        with app.lease("orders/42") as lease:
            assert lease.state == [1]
            assert lease.remove() is True
        with app.lease("orders/42") as lease:
            assert lease.state is None


def test_a_body_that_raises_in_a_program_without_a_loop_changes_nothing(where: str) -> None:
    def body(app: sync.App) -> None:
        with app.lease("orders/42") as lease:
            lease.save([1])
            raise ZeroDivisionError

    with sync.connect(where) as app:
        with pytest.raises(ZeroDivisionError):
            body(app)
        with app.lease("orders/42", wait="5s") as lease:
            assert lease.state is None


async def test_state_on_a_server_without_a_shared_store_of_objects_is_refused(redis_server: Valkey) -> None:
    async with connect(f"redis://127.0.0.1:{redis_server.port}/0") as app, app.lease(f"t/{uuid4().hex}") as lease:
        with pytest.raises(ConfigError, match="a directory of this host alone"):
            await lease.save([1])


def test_a_program_without_async_changes_several_keys_together(where: str) -> None:
    def move(app: sync.App, *, fail: bool) -> None:
        with app.transaction() as change:
            one, other = change.lease_all("b", "a")
            one.save((one.state or 0) - 1)
            other.save((other.state or 0) + 1)
            if fail:
                raise ZeroDivisionError

    with sync.connect(where) as app:
        move(app, fail=False)
        with pytest.raises(ZeroDivisionError):
            move(app, fail=True)
        with app.transaction() as change:
            assert ([change.lease(key).state for key in ("a", "b")], len(change.id)) == ([1, -1], 20)
