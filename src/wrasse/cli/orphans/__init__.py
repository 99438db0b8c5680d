"""wrasse orphans: the commands, and their operations."""
