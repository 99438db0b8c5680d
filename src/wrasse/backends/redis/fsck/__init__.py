"""Damage on Redis: the lists, and what is kept beside them, compared from all sides."""
