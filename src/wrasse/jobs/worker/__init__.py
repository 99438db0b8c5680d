"""One worker: fetcher, slots, completer, heartbeat, progress."""
