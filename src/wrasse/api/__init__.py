"""The API for programs: App, and its jobs, streams and leases."""
