"""wrasse archives: the group."""

from __future__ import annotations

from wrasse.app.cli_group import LazyGroup

HOMES = {
    "list": ("cli_archives_look:list_", "archives in order, with what each holds"),
    "read": ("cli_archives_look:read_", "messages in order, each once"),
    "replay": ("cli_archives_change:replay_", "publish archived messages into a stream again"),
    "restart": ("cli_archives_change:restart_", "go on with a stream that was set back"),
    "verify": ("cli_archives_look:verify_", "prove that no message is missing or twice"),
}

archives = LazyGroup(
    "archives",
    HOMES,
    about="List archives, read messages back or publish them again, and prove that none is missing or twice.",
    examples="""\b
Examples:
  wrasse archives list
  wrasse archives read 'gbe.events.audit.*' --since=7d
  wrasse archives verify
  wrasse archives replay gbe.events.audit.change --into=test.audit --dry-run
""",
)
