"""JobQueue on Redis: the queue, and the messages of each of its operations."""
