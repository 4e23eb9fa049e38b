"""The library: the machine code of the daemon's loops, in one file that needs no compiler to load.

`bruce compile` writes it (spool.native.linking), and every process reads it at its first loop. Numba with the
same loops takes half a second of a processor and 34 MB of memory, the library 0.1 s and 7 MB.

    magic     8 bytes
    digest    32 bytes, the sha256 of the rest
    length    8 bytes, of the header
    header    JSON: the processor and the releases that the code is for; the sha256 of each source file that
              it is made of; and for each loop its symbols, with what each takes and gives
    code      an ELF object file

The file counts if all of that is of this host and of the sources as they are. Otherwise it is passed over,
and Numba has its own cache.

A loop's symbol is `int64 loop(int64 *words)`. Each number is a word; each array is the address of its object,
whose fields the code itself reads and checks. Results are stored behind the arguments (spool.native.loop).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from ctypes import CFUNCTYPE, c_int64, c_void_p
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from spool.native.loop import Loop

log = logging.getLogger("bruce")

MAGIC = b"bruceL01"
ROOT = Path(__file__).parents[2]
"""Of the source files."""
_DIGEST_BYTES, _LENGTH_BYTES = 32, 8
_loading = threading.Lock()


def places() -> list[Path]:
    """The places for a library; the first that can be written gets it."""
    name = f"loops.{sys.implementation.cache_tag}.bin"
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(given) / name]
    home = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return [Path(__file__).with_name("__pycache__") / name, Path(home, "bruce", name)]


def can_be_written(place: Path) -> bool:
    """Whether a library can be put there; its folder, and the one around it, may be missing."""
    folder = next((one for one in place.parents[:3] if os.path.isdir(one)), None)
    return folder is not None and os.access(folder, os.W_OK)


def made_for() -> dict[str, str]:
    """The processor and the releases that code made by this process is for."""
    from llvmlite import binding  # noqa: PLC0415  (LLVM)

    numba = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_CPU_")}
    return {
        **numba,
        **{name: version(name) for name in ("numba", "llvmlite", "numpy")},
        "python": sys.version,
        "cpu": binding.get_host_cpu_name(),
        "features": binding.get_host_cpu_features().flatten(),
    }


def digests(sources: Sequence[str], root: Path = ROOT) -> dict[str, str]:
    """The sha256 of source files, by their paths below `root`; of none that cannot be read."""
    found = {}
    for source in sources:
        try:
            found[source] = hashlib.sha256((root / source).read_bytes()).hexdigest()
        except OSError:
            continue
    return found


def pack(header: Mapping[str, Any], code: bytes) -> bytes:
    """The bytes of a library."""
    text = json.dumps(header).encode()
    rest = len(text).to_bytes(_LENGTH_BYTES, "little") + text + code
    return MAGIC + hashlib.sha256(rest).digest() + rest


def unpack(data: bytes) -> tuple[dict[str, Any], bytes] | None:
    """(header, code); None of a file that is torn, or something else."""
    rest = data[len(MAGIC) + _DIGEST_BYTES :]
    if data[: len(MAGIC)] != MAGIC or data[len(MAGIC) : -len(rest)] != hashlib.sha256(rest).digest():
        return None
    end = _LENGTH_BYTES + int.from_bytes(rest[:_LENGTH_BYTES], "little")
    return json.loads(rest[_LENGTH_BYTES:end]), rest[end:]


def find() -> tuple[dict[str, Any], bytes] | None:
    """The library of these sources for this processor: (header, code)."""
    for place in places():
        try:
            found = unpack(place.read_bytes())
        except OSError:
            continue
        if found and _is_current(found[0]):
            return found
    return None


def _is_current(header: Mapping[str, Any]) -> bool:
    sources = header["sources"]
    return bool(digests(list(sources)) == sources and made_for() == header["for"])


def load() -> Mapping[str, list[Loop]]:
    """The loops of the library, by `module.name`; empty where there is none for this host and release."""
    with _loading:
        return _load()


def forget() -> None:
    """Look for the library again at the next `load`: it was written meanwhile."""
    _load.cache_clear()


@cache
def _load() -> Mapping[str, list[Loop]]:
    found = find()
    if found is None:
        return {}
    header, code = found
    try:
        linked = _link(code, [symbol for symbols in header["loops"].values() for symbol, *_ in symbols])
    except RuntimeError as error:
        log.warning("the compiled loops of this host cannot be linked, they are compiled again: %s", error)
        return {}
    prototype = CFUNCTYPE(c_int64, c_void_p)
    return {
        name: [Loop(cast(Any, prototype(linked[symbol])), takes, gives) for symbol, takes, gives in symbols]
        for name, symbols in header["loops"].items()
    }


_links: list[Any] = []
"""LLVM frees code when the object goes that it was linked by."""


def _link(code: bytes, symbols: Sequence[str]) -> Any:
    from llvmlite import binding  # noqa: PLC0415  (LLVM)

    binding.initialize_native_target()
    linker = binding.create_lljit_compiler()
    builder = binding.JITLibraryBuilder().add_object_img(code).add_current_process()
    for symbol in symbols:
        builder.export_symbol(symbol)
    linked = builder.link(linker, "bruce")
    _links.extend((linker, linked))
    return linked
