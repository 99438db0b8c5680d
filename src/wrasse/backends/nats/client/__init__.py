"""Our client of NATS: transport, connection, parser, JetStream calls."""
