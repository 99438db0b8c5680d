"""The HTTP side of a process: the listener, the snapshot and its pages."""
