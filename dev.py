#!/usr/bin/env python3
"""Everything a checkout needs, with nothing but Python 3.11 or newer and a package index.

    python3 dev.py demo                 a minute's tour on SQLite and a directory
    python3 dev.py run [args]           the wrasse command itself, e.g. `run jobs list`
    python3 dev.py test [pytest args]   the tests, in parallel; --full adds their long forms and draws a seed,
                                        --seed=N repeats one
    python3 dev.py bench [args]         the benchmarks; results are ratios taken in one run
    python3 dev.py lint                 ruff and mypy --strict
    python3 dev.py docs [--check]       write the reference pages from the code, or say what differs

The first call makes .venv beside this file and installs the hash-locked requirements from whatever
index pip is configured for. One that another version of Python made is made anew. DEV_VENV names another place for it.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parent
VENV = ROOT / os.environ.get("DEV_VENV", ".venv")
BIN = VENV / "bin"
LOCKS = {"demo": "requirements.lock", "run": "requirements.lock"}


def ensure(lock: str) -> None:
    """Brings .venv to what `lock` says, unless a stamp shows that this was done already."""
    want = hashlib.sha256(b"".join((ROOT / f).read_bytes() for f in (lock, "pyproject.toml"))).hexdigest()
    stamp, ours = VENV / f".{lock}.ok", VENV / "lib" / "python{}.{}".format(*sys.version_info)
    if not ours.exists():
        remove_venv()
    if stamp.exists() and stamp.read_text() == want:
        return
    print(f"wrasse: installing {lock} into {VENV.name} ...", file=sys.stderr)
    if not (BIN / "pip").exists():
        make_venv()
    # Errors only: pip warns about every configured location that does not exist, which says nothing about us.
    pip = [str(BIN / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", lock], check=True, cwd=ROOT)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", "."], check=True, cwd=ROOT)
    stamp.write_text(want)


def remove_venv() -> None:
    """DEV_VENV may name any directory: only one that is a virtual environment is removed."""
    if (VENV / "pyvenv.cfg").exists():
        shutil.rmtree(VENV, ignore_errors=True)
    elif VENV.exists() and any(VENV.iterdir()):
        raise SystemExit(f"{VENV} is not a virtual environment\ndo: name another place with DEV_VENV, or remove it")


def make_venv() -> None:
    remove_venv()
    try:
        venv.create(VENV, with_pip=True)
    except Exception as why:
        shutil.rmtree(VENV, ignore_errors=True)
        raise SystemExit(
            f"could not make {VENV.name}: {why}\ndo: install the venv module, e.g. `apt-get install python3-venv`"
        ) from None


def commands(what: str, rest: list[str]) -> list[list[str]]:
    python, wrasse = str(BIN / "python"), str(BIN / "wrasse")
    if what == "demo":
        return [[wrasse, "demo", *rest]]
    if what == "run":
        return [[wrasse, *rest]]
    if what == "bench":
        return [[python, "-m", "bench", *rest]]
    if what == "docs":
        return [[python, "-m", "tools.docs", *rest]]
    if what == "lint":
        return [[str(BIN / "ruff"), "check", "."], [str(BIN / "mypy"), *rest]]
    # Two more than there are cores: tests of real processes wait about as much as they work.
    processes = str(len(os.sched_getaffinity(0)) + 2)
    workers = [] if any(a.startswith("-n") for a in rest) else ["-n", processes, "--dist", "worksteal"]
    return [[python, "-m", "pytest", *workers, *rest]]


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036  (whoever has an older one must be told)
        raise SystemExit("wrasse needs Python 3.11 or newer; this is " + sys.version.split()[0])
    what, rest = (sys.argv[1] if len(sys.argv) > 1 else "demo"), sys.argv[2:]
    if what not in ("demo", "run", "test", "bench", "lint", "docs"):
        print(__doc__)
        return 0 if what in ("-h", "--help", "help") else 2
    try:
        ensure(LOCKS.get(what, "requirements-dev.lock"))
    except subprocess.CalledProcessError as why:
        print("could not install the requirements\ndo: check that pip reaches a package index", file=sys.stderr)
        return why.returncode
    *first, last = commands(what, rest)
    for command in first:
        if code := subprocess.run(command, cwd=ROOT).returncode:
            return code
    if what != "run":
        os.chdir(ROOT)
    return os.execv(last[0], last)  # never comes back: signals and exit code are the command's own


if __name__ == "__main__":
    sys.exit(main())
