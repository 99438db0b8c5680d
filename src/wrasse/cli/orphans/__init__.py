"""wrasse orphans: the commands, and what they carry out."""
