"""wrasse orphans: the group."""

from __future__ import annotations

from wrasse.app.cli_group import LazyGroup

HOMES = {
    "plan": ("cli_orphans_plan", "look at a root, and write what is due with a reason per line"),
    "apply": ("cli_orphans_plan:apply_", "carry out a plan"),
    "arm": ("cli_orphans_change", "let a root act by itself, or overrule a refusal"),
    "disarm": ("cli_orphans_change", "let a root only plan"),
    "undo": ("cli_orphans_change", "bring back what a run took"),
    "why": ("cli_orphans_look", "what protects or condemns a key"),
    "list": ("cli_orphans_look:list_", "roots, or what is noted of one"),
}

orphans = LazyGroup(
    "orphans",
    HOMES,
    about="Objects that nothing refers to: find them, take them away, bring them back.",
    examples="""\b
Examples:
  wrasse orphans plan archives --out plan.jsonl
  wrasse orphans arm archives
  wrasse orphans why archives/ws1/op7/home.tar.gz
  wrasse orphans undo 01KD3Z8Q6Y8M5B9W0X2V7T4N1R
""",
)
