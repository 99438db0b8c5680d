"""Queues of the lease API: the routes, and the service behind them."""
