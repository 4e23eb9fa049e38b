"""Where a report comes from: so that it can be held against others, and against the files, later."""

from __future__ import annotations

import hashlib
import socket
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spool.abreast import in_order
from spool.disk import is_regular, opened


def provenance(files: Iterable[Path] | None = None) -> dict[str, Any]:
    """`tool`, `host`, `boot_id` and `made` (UTC) for a JSON report, and the hashes of these files (`sha256`).

    Files that are gone meanwhile are left out. Raises OSError for those that cannot be read.
    """
    from spool.recovery import boot_id  # noqa: PLC0415  (it brings Numba along)

    origin: dict[str, Any] = {
        "tool": f"bruce {version('bruce-spool')}",
        "host": socket.gethostname(),
        "boot_id": str(uuid.UUID(bytes=boot_id())),
        "made": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
    if files is not None:
        origin["sha256"] = dict(in_order(_hash, list(files)))
    return origin


def files_of(directory: Path) -> list[Path]:
    """Every file of a spool, for `provenance`, in order."""
    return sorted(path for path in directory.rglob("*") if is_regular(path))


def _hash(path: Path) -> Iterator[tuple[str, str]]:
    """(path, sha256 of the file); nothing where it is gone."""
    with suppress(FileNotFoundError), opened(path) as file:
        yield str(path), hashlib.file_digest(file, "sha256").hexdigest()
