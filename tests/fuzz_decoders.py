"""Fuzzes the decoders of tests/decoders.py with atheris, guided by which branches of wrasse the bytes reach.

    python tests/fuzz_decoders.py FOLDER SEED FACTOR [NAME ...]   fuzzes all decoders, or those that are named
    python tests/fuzz_decoders.py NAME HEX                        gives one decoder these bytes

The number of runs is fixed, so the same seed tries the same bytes. Each decoder runs in a process of its own, forked
from one that has imported wrasse, since instrumenting takes a few seconds. Bytes that make a decoder raise something
that is not its answer, take `SECONDS_MAX` or take `MEGABYTES_MAX` are written to FOLDER, and printed with the command
that repeats them. It ends with 1 if there were any.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import atheris

sys.path[:0] = [str(Path(__file__).parent)]
with atheris.instrument_imports(include=["wrasse"]):
    from decoders import DECODERS, Decoder, escaped, odd_values

RUNS = 12_000
"""Inputs that each decoder is given, times the factor, divided by its cost."""
BYTES_MAX = 4_096
SECONDS_MAX = 20
MEGABYTES_MAX = 2_048
WORD_BYTES_MAX = 60  # of a dictionary; libFuzzer takes up to 64


@atheris.instrument_func
def _planted(data: bytes) -> None:
    """A bug that only guidance finds: three bytes, each of which leads one branch further."""
    if len(data) > 2 and data[0] == 0x6F and data[1] == 0x64 and data[2] == 0x64:
        raise OverflowError("planted")


PLANTED = Decoder("planted", _planted, (b"even",))


def fuzz(decoder: Decoder, folder: Path, seed: int, factor: int) -> None:
    """Runs libFuzzer, which ends the process."""
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    for number, data in enumerate(decoder.seeds):
        (corpus / f"{number:03}").write_bytes(data)
    words = ("".join(f"\\x{byte:02x}" for byte in value) for value in odd_values() if 0 < len(value) <= WORD_BYTES_MAX)
    (folder / "words").write_text("".join(f'"{word}"\n' for word in words))

    def answered(data: bytes) -> None:
        if (error := escaped(decoder, data)) is not None:
            raise error

    limits = (f"-max_len={BYTES_MAX}", f"-timeout={SECONDS_MAX}", f"-rss_limit_mb={MEGABYTES_MAX}")
    # libFuzzer draws a seed of its own if it is told 0.
    chosen = (f"-seed={seed % 0x7FFF_FFFF + 1}", f"-runs={RUNS * factor // decoder.cost}")
    # msgspec is not instrumented: by the branches of wrasse alone, a record and its first byte are often the same.
    kept = ("-reduce_inputs=0", "-keep_seed=1", f"-dict={folder}/words", f"-artifact_prefix={folder}/broke-")
    atheris.Setup([sys.argv[0], *chosen, *limits, *kept, str(corpus)], answered)
    atheris.Fuzz()


def in_child(decoder: Decoder, folder: Path, seed: int, factor: int) -> bool:
    """Whether libFuzzer ended well. What it wrote is in the folder, and shown if it did not."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    if not (child := os.fork()):
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        fuzz(decoder, folder, seed, factor)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        return True
    print(log.read_text(errors="replace")[-4_000:])
    for broke in sorted(folder.glob("broke-*")):
        command = shlex.join([".venv/bin/python", "tests/fuzz_decoders.py", decoder.name, broke.read_bytes().hex()])
        print(f"{decoder.name}: broken by {broke.read_bytes().hex()}\nagain: {command}")
    return False


def main(first: str, second: str, *rest: str) -> int:
    """What the module says."""
    named = {decoder.name: decoder for decoder in (*DECODERS, PLANTED)}
    if first in named:
        if (error := escaped(named[first], bytes.fromhex(second))) is not None:
            raise error
        return 0
    chosen = [named[name] for name in rest[1:]] or DECODERS
    ended = [in_child(each, Path(first) / each.name.replace(" ", "-"), int(second), int(rest[0])) for each in chosen]
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
