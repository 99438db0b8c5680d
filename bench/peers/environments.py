"""The environment of each peer, made once below .bench/ from its pinned requirements in pins/.

To renew the pins of a peer: install it into an empty environment, and write what `pip freeze` says there into its file.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from bench.peers.roster import OURS, Mode

ROOT = Path(__file__).resolve().parents[2]
_HERE = Path(__file__).parent
_HOME = ROOT / ".bench" / "peers"


def programs(peer: str) -> Path:
    """Where the peer's python and its own programs are. Makes the environment if its pins have changed."""
    if peer == OURS:
        return Path(sys.executable).parent
    pins, place = _HERE / "pins" / f"{peer}.txt", _HOME / peer
    want, stamp = hashlib.sha256(pins.read_bytes()).hexdigest(), place / ".pins.ok"
    if not stamp.exists() or stamp.read_text("utf-8") != want:
        print(f"bench: installing {peer} into {place.relative_to(ROOT)} ...", file=sys.stderr)
        venv.create(place, with_pip=True, clear=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "-r", str(pins)], check=True)
        stamp.write_text(want, "utf-8")
    return place / "bin"


def variables(name: str, mode: Mode, port: int, place: Path, setting: str = "default") -> Mapping[str, str]:
    """What the peer's processes are told: see given.py."""
    path = [str(ROOT), str(ROOT / "src")]  # ours is this checkout's, whichever is installed
    if not mode.uvloop:
        path.insert(0, str(_HERE / "without_uvloop"))
    told = {
        "BENCH_PORT": str(port),
        "BENCH_MODE": name,
        "BENCH_SETTING": setting,
        "BENCH_MARKS": str(place / "marks"),
        "BENCH_STARTS": str(place / "starts"),
        "PYTHONPATH": os.pathsep.join(path),
    }
    own = {key: text.format(url=f"redis://127.0.0.1:{port}/0") for key, text in mode.env.items()}
    return {**os.environ, **told, **own}
