"""Redis and Valkey: job lists in the layout of the seed, and small records, each change one script."""
