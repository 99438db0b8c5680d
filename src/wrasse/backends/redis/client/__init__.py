"""Clients of Redis: ours and redis-py's, behind one interface."""
