"""wrasse archives: the group."""

from __future__ import annotations

from wrasse.app.cli_group import LazyGroup

HOMES = {
    "list": ("cli_archives_look:list_", "archives in order, with what each holds"),
    "read": ("cli_archives_look:read_", "messages in order, each once"),
    "verify": ("cli_archives_look:verify_", "prove that no message is missing or twice"),
}

archives = LazyGroup(
    "archives",
    HOMES,
    about="List archives, read messages back, and prove that none is missing or twice.",
    examples="""\b
Examples:
  wrasse archives list
  wrasse archives read 'gbe.events.audit.*' --since=7d
  wrasse archives verify
""",
)
