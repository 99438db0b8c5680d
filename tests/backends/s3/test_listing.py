"""Listings by stores that never end, go back, or answer what was not asked: an error, and no endless loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import pytest
from aiohttp import web

from backends.s3.scene import Scene, scene
from wrasse.backends import page_loop
from wrasse.backends.s3 import object_listing, xml
from wrasse.backends.s3.client import Client, Conditions
from wrasse.backends.s3.object_listing import Lister
from wrasse.backends.s3.xml import ListedObject
from wrasse.errors import StoreBroken
from wrasse.ports.records import Collection

AT = "2026-01-02T03:04:05.678Z"


def lister_of(now: Scene, *, ordered: bool) -> Lister:
    return Lister(Client(now.backend._wire, Conditions(ordered=ordered)))


def answering(now: Scene, pages: Iterator[str]) -> list[Mapping[str, str]]:
    """Every listing is answered with the next of these pages; gives what was asked."""
    asked: list[Mapping[str, str]] = []

    def answer(query: Mapping[str, str]) -> web.Response:
        asked.append(query)
        return web.Response(text=f"<ListBucketResult>{next(pages)}</ListBucketResult>")

    now.server._list = answer  # type: ignore[method-assign]
    return asked


def page(*names: str, token: str = "", folders: tuple[str, ...] = ()) -> str:
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
    return (
        (more if token else "<IsTruncated>false</IsTruncated>")
        + "".join(
            f"<Contents><Key>{name}</Key><LastModified>{AT}</LastModified><ETag>e</ETag><Size>1</Size></Contents>"
            for name in names
        )
        + "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in folders)
    )


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("tokens", [lambda n: "same", lambda n: f"t{n}"], ids=["same token", "new tokens"])
async def test_a_store_that_shows_nothing_for_ever_is_an_error(
    ordered: bool, tokens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_listing, "STALE_PAGES_MAX", 10)
    async with scene() as now:
        lister = lister_of(now, ordered=ordered)
        asked = answering(now, (page(token=tokens(n)) for n in count()))
        with pytest.raises(StoreBroken, match="without end"):
            await lister.page(b"here/", None, 10)
        with pytest.raises(StoreBroken, match="without end"):
            await lister.folders(b"here/")
        assert len(asked) <= 24


@pytest.mark.parametrize(
    "answer",
    [
        lambda n: page("here/a", token=f"t{n % 3}"),
        lambda n: page("here/a", token=f"t{n}"),
        lambda n: page(folders=("here/a/",), token=f"t{n % 3}"),
        lambda n: page(folders=("here/a/",), token=f"t{n}"),
        lambda n: page(f"here/a{n:09}", token=f"t{n}"),
    ],
    ids=["a circle of keys", "a key again", "a circle of folders", "a folder again", "keys without end"],
)
async def test_pages_that_never_end_are_an_error(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_listing, "STALE_PAGES_MAX", 10)
    monkeypatch.setattr(page_loop, "ROUNDS_MAX", 40)
    async with scene() as now:
        asked = answering(now, (answer(n) for n in range(100)))
        with pytest.raises(StoreBroken, match="without end"):
            await lister_of(now, ordered=False).folders(b"here/")
        assert len(asked) <= 40
        answering(now, (answer(n) for n in range(100)))
        with pytest.raises(StoreBroken, match="without end"):
            await lister_of(now, ordered=False).page(b"here/", b"here/b", 10)


async def test_objects_and_records_that_stand_for_nothing_without_end_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page_loop, "ROUNDS_MAX", 5)
    async with scene() as now:
        answering(now, (page(f"here/.wrasse-probe/{n:09}", token=f"t{n}") for n in range(20)))
        with pytest.raises(StoreBroken, match="without end"):
            await now.backend.objects.page("", None, 1)
        answering(now, (page(f"here/things/{n:09}.json", token=f"t{n}") for n in range(20)))
        with pytest.raises(StoreBroken, match="without end"):
            await now.backend.records(Collection("things", "due", "buckets")).page("", None, 1)


async def test_tokens_may_be_the_same_in_different_folders() -> None:
    async with scene() as now:
        first = page(folders=("here/a/", "here/b/"), token="1")
        pages = [first, page("here/a/x", token="1"), page("here/a/y"), page("here/c"), page("here/b/x", token="1")]
        answering(now, iter([*pages, page("here/b/y")]))
        found, more = await lister_of(now, ordered=False).page(b"here/", None, 10)
        names = [b"here/a/x", b"here/a/y", b"here/b/x", b"here/b/y", b"here/c"]
        assert ([each.key for each in found], more) == (names, False)


@pytest.mark.parametrize("key", ["a", "her", "herf/x"])
async def test_a_key_that_was_not_asked_for_is_an_error(key: str) -> None:
    async with scene() as now:
        for answer in (page(key), page(folders=(f"{key}/",))):
            answering(now, iter([answer]))
            with pytest.raises(StoreBroken, match="outside the prefix"):
                await now.backend._client.list(b"here/", by_folder=True)


async def test_keys_that_come_again_under_new_tokens_are_an_error() -> None:
    async with scene() as now:
        lister = lister_of(now, ordered=False)
        answering(now, (page("here/a", "here/b", token=f"t{n}") for n in count()))
        with pytest.raises(StoreBroken, match="out of order"):
            await lister.page(b"here/", None, 10)


async def test_folders_of_one_level_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_listing, "FOLDERS_MAX", 50)
    async with scene() as now:
        answering(now, (page(folders=(f"here/{n:09}/",), token=f"t{n}") for n in count()))
        with pytest.raises(StoreBroken, match="more than 50 folders"):
            await lister_of(now, ordered=True).folders(b"here/")


async def test_folders_within_folders_end_where_keys_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml, "KEY_BYTES_MAX", 1_024)
    async with scene() as now:
        answering(now, (page(folders=("here/" + "a/" * (n + 1),)) for n in count()))
        with pytest.raises(StoreBroken, match="too long"):
            await lister_of(now, ordered=False).page(b"here/", None, 10)


async def test_a_folder_is_walked_before_the_rest_of_its_level_is_listed() -> None:
    async with scene() as now:
        asked = answering(
            now,
            iter([page(folders=("here/a/", "here/b/"), token="t1"), page("here/a/x", "here/a/y")]),
        )
        found, more = await lister_of(now, ordered=False).page(b"here/", None, 1)
        assert ([each.key for each in found], more, len(asked)) == ([b"here/a/x"], True, 2)
        assert all(isinstance(each, ListedObject) for each in found)


async def test_uploads_that_come_again_for_ever_are_an_error() -> None:
    async with scene() as now:
        now.server._list_uploads = lambda query: web.Response(  # type: ignore[method-assign]
            text="<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>here/a</NextKeyMarker>"
            "<NextUploadIdMarker>u</NextUploadIdMarker><Upload><Key>here/a</Key><UploadId>u</UploadId>"
            f"<Initiated>{AT}</Initiated></Upload></ListMultipartUploadsResult>"
        )
        first = await now.backend.objects.uploads("", None, 1)
        with pytest.raises(StoreBroken, match="for ever"):
            await now.backend.objects.uploads("", first.cursors[-1], 1)
