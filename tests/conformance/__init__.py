"""One suite per port, every backend a parameter: what a port's header promises, held by each who offers it."""
