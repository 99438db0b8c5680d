"""A page: every item has a cursor, and only a page with items can be followed by another."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from wrasse.ports.page import Page

AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_next_page_starts_after_the_last_item() -> None:
    assert Page(("a", "b"), ("1", "2"), AT, more=True).cursor == "2"


def test_there_is_nothing_after_the_last_page() -> None:
    assert Page(("a", "b"), ("1", "2"), AT, more=False).cursor is None


def test_a_page_is_as_long_as_its_items() -> None:
    page = Page(("a", "b"), ("1", "2"), AT, more=False)
    assert (list(page), len(page)) == (["a", "b"], 2)


def test_an_empty_page_is_the_last() -> None:
    page: Page[str] = Page((), (), AT, more=False)
    assert (page.cursor, list(page)) == (None, [])


def test_an_empty_page_that_promises_more_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="empty page"):
        Page((), (), AT, more=True)


def test_an_item_without_a_cursor_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="cursor"):
        Page(("a", "b"), ("1",), AT, more=False)
