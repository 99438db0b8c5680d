"""The worker: fetcher, slots, completer, heartbeat, progress."""
