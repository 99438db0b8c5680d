"""The daemon in its role `leases`, made to be killed: each line on stdin starts one more, in a fork.

    python lease_actor.py <port> <folder> <URL of records>

The parent imports everything once and serves nothing, so that a new server is there in milliseconds. It says the pid
of each; the next is started only when the one before it has ended, so that the port is free. When stdin ends, the
parent ends.
"""

from __future__ import annotations

import os
import signal
import sys

import wrasse.backends.directory.connect
import wrasse.backends.s3.connect
import wrasse.backends.sqlite.connect  # imported here so that no fork has to
import wrasse.cli.run
import wrasse.runtime.backends
import wrasse.runtime.daemon  # noqa: F401
from wrasse.cli.main import main as wrasse_main


def serve(port: str, folder: str, records: str) -> None:
    os.chdir(folder)
    sys.argv = [
        "wrasse", "run", "--role=leases", "--listen=", f"--set=leases.listen=127.0.0.1:{port}",
        f"--set=backends.records={records}", "--set=observability.log_level=error",
    ]  # fmt: skip
    wrasse_main()


def main() -> None:
    port, folder, records = sys.argv[1:]
    last = 0
    for _ in sys.stdin:
        if last:
            os.waitpid(last, 0)
        last = os.fork()
        if last == 0:
            serve(port, folder, records)
            os._exit(0)
        print(last, flush=True)
    if last:
        os.kill(last, signal.SIGKILL)
        os.waitpid(last, 0)


if __name__ == "__main__":
    main()
