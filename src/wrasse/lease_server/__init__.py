"""The HTTP API of leases and state: lockd's paths, headers, fields and codes, over `wrasse.leases`.

lockd's names (`txn`, `meta`, `lease_id`) are used in this package only and translated at its border.
"""
