"""JobQueue on Redis: the queue, and what each of its operations sends and reads."""
