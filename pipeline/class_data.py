"""The archive of the classes that Spark loads (Java's class data sharing): a session starts a third faster.

The JVM of the first session on this host writes it when it ends; later ones map it, and need not read, check
and link the classes again. File: CACHE/bruce/spark-DIGEST.jsa, of some 160 MiB, where CACHE is
$XDG_CACHE_HOME or ~/.cache; the digest is of the Java and of Spark's jars. Java itself checks whether an
archive fits, and goes on without one that does not.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SILENT = "-Xlog:disable -Xlog:all=error:stderr"
"""Keeps warnings about an archive that does not fit out of the JVM's output."""
_FRESH = "fresh-"


@contextmanager
def class_data(directory: Path | None = None) -> Iterator[str]:
    """The options of a JVM that ends within the context, and may be the first; none where there is no room.

    Somebody who has options for Spark's JVMs of his own ($SPARK_SUBMIT_OPTS) chooses his own archive.
    """
    archive = None if "SPARK_SUBMIT_OPTS" in os.environ else spark_archive(directory or _cache())
    if archive is None:
        yield ""
    elif archive.exists():
        yield f"-XX:SharedArchiveFile={archive} {SILENT}"
    else:
        with made(archive) as option:
            yield option


def is_missing() -> bool:
    """Whether the next session of this host makes the archive, which takes it some seconds more."""
    if "SPARK_SUBMIT_OPTS" in os.environ:
        return False
    archive = spark_archive(_cache())
    return archive is not None and not archive.exists()


def spark_archive(directory: Path) -> Path | None:
    """The path of the archive of Spark's classes; None without PySpark or Java."""
    found = importlib.util.find_spec("pyspark")
    home = os.environ.get("JAVA_HOME")
    # The one that Spark would take.
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if not java or not found or not found.submodule_search_locations:
        return None
    return archive_of("spark", directory, java, Path(found.submodule_search_locations[0]) / "jars")


def archive_of(name: str, directory: Path, java: str, jars: Path) -> Path:
    """The path of the archive of this Java and these jars."""
    files = [Path(java).resolve(), *sorted(jars.glob("*.jar"))]
    known = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return directory / f"{name}-{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}.jsa"


@contextmanager
def made(archive: Path) -> Iterator[str]:
    """The option by which a JVM writes the archive at its end; moves it into place if all went well.

    Archives of another Java or of other jars are removed. Without a place for it the option is empty.
    """
    with suppress(OSError):
        archive.parent.mkdir(parents=True, exist_ok=True)
    try:
        place = tempfile.TemporaryDirectory(prefix=_FRESH, dir=archive.parent, ignore_cleanup_errors=True)
    except OSError:
        yield ""
        return
    with place as name:
        fresh = Path(name) / "fresh.jsa"
        yield f"-XX:ArchiveClassesAtExit={fresh} {SILENT}"
        # There is none if the JVM was killed, or the disk is full.
        with suppress(OSError):
            fresh.rename(archive)
            for old in archive.parent.glob(f"{archive.name.partition('-')[0]}-*.jsa"):
                if old != archive:
                    old.unlink()


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bruce"
