"""S3: objects and records on any store with conditional writes, through our own thin client."""
