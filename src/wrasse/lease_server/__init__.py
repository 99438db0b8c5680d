"""The HTTP API of leases and state: lockd's paths, headers, fields and codes, over `wrasse.leases`.

Here the wire's words are used (`txn`, `meta`, `lease_id`); they are translated in these files and go no further.
"""
