"""Whatever the README, the first page and the how-tos tell somebody to type works as written."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.blocks import ROOT, Block, Stage, blocks

PAGES = (
    "README.md",
    "docs/start.md",
    "docs/how-to/choose-retries.md",
    "docs/how-to/group-jobs.md",
    "docs/how-to/handle-messages.md",
    "docs/how-to/limit-a-queue.md",
    "docs/how-to/run-a-job-every-night.md",
    "docs/how-to/test-your-handlers.md",
    "docs/how-to/turn-files-into-jobs.md",
    "docs/how-to/wait-for-a-result.md",
    "docs/how-to/write-a-sweep.md",
)
LONGER = (
    "docs/how-to/archive-a-stream.md",
    "docs/how-to/attachments.md",
    "docs/how-to/handle-jobs-over-http.md",
    "docs/how-to/queue-on-a-bucket.md",
    "docs/how-to/reclaim-storage.md",
    "docs/how-to/tasks.md",
    "docs/how-to/transactions.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_runs_and_says_what_is_written(page: str, tmp_path: Path) -> None:
    found = blocks(ROOT / page)
    assert any(block.kind == "console" and not block.why for block in found), "a page to follow has something to type"
    follow(page, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("page", LONGER)
def test_every_block_of_a_longer_page_runs(page: str, tmp_path: Path) -> None:
    assert any(block.kind in ("console", "sh", "python") and not block.why for block in blocks(ROOT / page))
    follow(page, tmp_path)


def follow(page: str, folder: Path) -> None:
    """Does what the page says, from top to bottom."""
    stage = Stage(folder)
    for block in blocks(ROOT / page):
        if block.why is None:
            stage.run(block)


@pytest.mark.parametrize("page", [*PAGES, *LONGER])
def test_every_block_names_its_kind_and_a_reason_if_it_is_not_run(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert text.count("\n```") == 2 * len(blocks(ROOT / page)), "write the kind after the three backticks"
    assert all(block.why is None or len(block.why) > 5 for block in blocks(ROOT / page))


@pytest.mark.parametrize(
    "block",
    [
        Block(1, "sh", "false\n", None),
        Block(1, "console", "$ echo one\ntwo\n", None),
        Block(1, "console", "$ printf 'one\\ntwo\\n'\ntwo\none\n", None),
        Block(1, "python", "raise SystemExit('no')\n", None),
        Block(1, "ruby", "puts 1\n", None),
    ],
    ids=lambda block: f"{block.kind}-{block.text.splitlines()[0]}",
)
def test_a_block_that_does_not_do_what_it_says_is_noticed(block: Block, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        Stage(tmp_path).run(block)


def test_output_may_differ_in_ids_times_and_numbers(tmp_path: Path) -> None:
    block = Block(
        1,
        "console",
        "$ echo 'job 01JAB3K5M7N9PQRSTVWXYZ0123  after 12 s'\njob 01JZZ3K5M7N9PQRSTVWXYZ0000 after 3 s\n",
        None,
    )
    Stage(tmp_path).run(block)
    assert blocks(ROOT / "README.md"), "and the pages do have blocks"
