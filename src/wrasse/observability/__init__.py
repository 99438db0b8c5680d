"""Logs, metrics, tracing, and values as JSON."""
