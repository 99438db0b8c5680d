"""A bucket of any S3 that honours conditions: objects and records, by a thin client of our own."""
