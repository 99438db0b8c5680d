"""Python job queues on one Redis, measured the same way: see roster.py for who takes part, contest.py for how.

A peer's file here runs inside the peer's own environment, which has nothing of wrasse; only the standard library, the
peer and redis-py are there. Everything else here runs in the project's.
"""
