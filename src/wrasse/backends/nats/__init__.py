"""Streams and records on NATS with JetStream."""
