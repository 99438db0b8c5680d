"""Leases: one owner per key until expires_at, with a fencing token that only grows."""
