"""Benchmarks: `python3 dev.py bench [name ...]`. Every result is a ratio taken in one run on one machine."""
