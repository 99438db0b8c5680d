"""The one engine: what a sweep is, how one runs, and what stops it."""
