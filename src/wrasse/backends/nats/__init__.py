"""NATS with JetStream as the home of streams and records."""
