"""JobQueue on SQLite: the queue, and one file per operation."""
