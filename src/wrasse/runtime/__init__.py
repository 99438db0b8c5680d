"""Builds what the settings want: backends, workers, the engine, an archiver, leases, orphans, the daemon."""
