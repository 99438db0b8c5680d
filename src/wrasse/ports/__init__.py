"""What we need from outside: types and one Protocol per file, no logic."""
