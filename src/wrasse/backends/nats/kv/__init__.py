"""Records in a JetStream key-value bucket: the store, its names, codec and due index."""
