"""`python -m tools.docs` writes the pages; with `--check` it only says which differ, and exits with 1 if any does."""

from __future__ import annotations

import sys

from tools.docs.pages import ROOT, pages


def main(check: bool) -> int:
    """Writes or compares; gives the exit code."""
    differing = [(path, text) for path, text in pages().items() if not _same(path, text)]
    for path, text in differing:
        if not check:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(text, "utf-8")
        print(f"{path} {'differs from the code' if check else 'written'}")
    if check and differing:
        print("do: python3 dev.py docs")
    return 1 if check and differing else 0


def _same(path: str, text: str) -> bool:
    file = ROOT / path
    return file.exists() and file.read_text("utf-8") == text


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
