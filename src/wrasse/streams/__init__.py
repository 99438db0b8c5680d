"""Messages on streams: published, delivered to handlers, acked, or set aside as dead letters."""
