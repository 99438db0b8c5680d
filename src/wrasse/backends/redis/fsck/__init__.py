"""Inconsistencies on Redis: the lists are compared with the indexes and texts beside them."""
