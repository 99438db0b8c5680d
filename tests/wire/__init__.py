"""What is stored and sent, byte for byte, compared with what was recorded before the words and rooms changed.

Each test plays a scenario through the ports, the lease API or the settings, on real servers or in directories, with a
clock of ours, dumps everything that is there afterwards with tools that know nothing of wrasse, and compares the text
with a file in `fixtures/`. Only what is random or comes from a server's own clock is replaced by a placeholder.

A difference is a change of a wire format: other programs, and data that is stored already, have the old one. Only a
change that is meant to be one records anew, and says so in its commit:

    python -m tests.wire --record [-k part of a test's name]

Formats of SQLite may change: its file migrates, `schema_before_words.sql` is a database of before, and
`test_sqlite_before.py` opens it.
"""
