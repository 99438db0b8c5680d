"""Leases: one owner, one key, until a moment, with a token that only grows."""
