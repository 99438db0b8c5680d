"""Objects and records as plain files below one directory: durable, and safe among processes on one machine."""
