"""How the machine code of a loop that is kept on disk is known to be of this release.

Numba keeps it with a hash of the file that the loop stands in. But the constants in it, and the loops that it
calls, come from other files, too: after an upgrade which changes one of those, code that was compiled before
would work on a page, or a frame, that is laid out anew. So what is compared is a hash of all our files that a
loop can be made of: its own, those that this one imports, and so on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numba
from numba.core import caching

_ROOT = Path(__file__).parent.parent
_PACKAGES = ("bruce_client", "dispatch", "ingest", "pipeline", "router", "spool", "tools")
"""Where loops stand, and what they are made of: others beside them are not ours."""
_IMPORT = re.compile(r"^[ \t]*from (\S+) import (\([^)]*\)|.*)|^[ \t]*import (.*)", re.MULTILINE)


@cache
def stamp(path: Path, root: Path = _ROOT) -> bytes:
    """The sha256 of a source file, and of all that it is made of below `root`."""
    found, left = set[Path](), {path}
    while left:
        one = left.pop()
        found.add(one)
        left |= _imported(one, root) - found
    return hashlib.sha256(b"".join(map(_digest, sorted(found)))).digest()


@cache
def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@cache
def _imported(path: Path, root: Path) -> frozenset[Path]:
    """Our files among those that a source file imports, at its top or later."""
    names = set[str]()
    for module, members, modules in _IMPORT.findall(path.read_text(encoding="utf-8")):
        # A member may be a module, too.
        names |= {module, *(f"{module}.{member}" for member in re.findall(r"\w+", members))}
        names |= set(re.findall(r"[\w.]+", modules))
    return frozenset().union(*(_files(name, root) for name in names))


@cache
def _files(module: str, root: Path) -> frozenset[Path]:
    """Where a module of ours stands; nowhere when it is not ours, or none."""
    if module.partition(".")[0] not in _PACKAGES:
        return frozenset()
    base = root.joinpath(*module.split("."))
    return frozenset(file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file())


class _Stamped:
    """Mixed into a way of Numba's to find a place on disk."""

    _py_file: str

    def get_source_stamp(self) -> bytes:
        return stamp(Path(self._py_file))


class Given(_Stamped, caching.UserProvidedCacheLocator):  # type: ignore[misc]
    """Below NUMBA_CACHE_DIR."""


class Beside(_Stamped, caching.InTreeCacheLocator):  # type: ignore[misc]
    """Beside the source."""


class AtHome(_Stamped, caching.UserWideCacheLocator):  # type: ignore[misc]
    """Below the cache of whoever runs us."""


@contextmanager
def our_places() -> Iterator[None]:
    """Loops that are declared meanwhile are kept in these places; other people's as Numba keeps them."""
    before = numba.config.CACHE_LOCATOR_CLASSES
    numba.config.CACHE_LOCATOR_CLASSES = ",".join(
        f"{__name__}.{one.__name__}" for one in (Given, Beside, AtHome)
    )
    try:
        yield
    finally:
        numba.config.CACHE_LOCATOR_CLASSES = before
