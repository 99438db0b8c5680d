"""Builds a process from its settings: backends, workers, the engine, an archiver, leases, orphans, the daemon."""
