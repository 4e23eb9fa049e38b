"""The process that fuzzes: python -m tools.fuzzers.run TARGET, then libFuzzer's own arguments.

TARGET is one of tools.fuzzers.targets, or the dotted name of another function of bytes.

With NUMBA_DISABLE_JIT=1 the parsers are Python, and the branches that an input takes guide the fuzzer.
Compiled they are the code of the daemon: without such guidance, and a read after the input is a SIGSEGV.
"""

from __future__ import annotations

import os
import pydoc
import sys

import atheris


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    name, *arguments = sys.argv[1:]
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        with atheris.instrument_imports(include=["spool", "ingest", "cli"]):
            from tools.fuzzers.targets import TARGETS  # noqa: PLC0415
    else:
        from tools.fuzzers.targets import TARGETS  # noqa: PLC0415
    atheris.Setup([sys.argv[0], *arguments], TARGETS.get(name) or pydoc.locate(name))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
