"""Redis and Valkey: job lists as the seed has them, and small records, each change one script."""
