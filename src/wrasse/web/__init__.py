"""What a browser or Prometheus reads: the listener, the snapshot of a process and its pages."""
