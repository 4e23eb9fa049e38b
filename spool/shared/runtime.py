"""The paths of a spool's runtime files, in memory (tmpfs) that outlives processes and not the host.

There are two places: /run/bruce (or $BRUCE_RUNTIME_DIRECTORY), which the package, systemd or a container
makes, and /dev/shm. One that is ours is used as it is (spool.storage.ownership). In one that is everybody's,
like /dev/shm, where the kernel lets no user remove another's files (the sticky bit), we have a directory of
our own:

    /dev/shm/bruce-UID            mode 0710: the group may open by name the shared state alone
    /dev/shm/bruce-UID-RANDOM     if another user has taken that name

It is found by its name and its owner, which no user can forge: another user's directory of such a name is
passed over, so taking names stops no start. A place that others may write to without that bit is not used.

    bruce-SPOOL-BOOT.page, .staging, .lines, .trace-ask, .trace

Earlier releases had these files in /dev/shm itself. In the same boot, messages that such a daemon has
accepted and not written are still there; `own_runtime` moves them.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from spool.errors import NotOurs
from spool.format.segment_format import Record
from spool.native.digest import digest
from spool.shared.state import Field, announced_in, read_shared_state
from spool.storage.disk import read_bytes
from spool.storage.ownership import Owners, believed, is_own_directory, judge, open_believed

log = logging.getLogger("bruce.spool")

MEMORY = Path("/dev/shm")
DIRECTORY_MODE = 0o710
_OWN_NAME = re.compile(r"bruce-(\d+)(?:-[0-9a-f]+)?")
_PAGE, _STAGING = ".page", ".staging"
_MOVED = (_PAGE, ".lines", _STAGING)
"""In this order: while the last one is where it was, moving goes on at the next start."""
_MOUNTS = Path("/proc/self/mounts")
_MOUNTS_BYTES = 16 << 20


def runtime_of(directory: Path, spool: bytes, boot: bytes) -> Path:
    """The directory that has the shared state of the spool in `directory`; the first place if none has.

    For readers: with other rights than the daemon, and even if /run/bruce was made after the daemon started.
    """
    owners = believed(directory)
    found = (p for p in _places(owners) if _is_believed(shared_state_path(p, spool, boot), owners))
    return next(found, None) or _bases()[0]


def own_runtime(directory: Path, spool: bytes, boot: bytes) -> Path:
    """The directory for the daemon of the spool in `directory`: that of a predecessor, else a fresh one.

    Files that a daemon of an earlier release has left in this boot are moved there. Raises NotOurs, OSError.
    """
    own = [place for place in _places({os.geteuid()}) if _is_usable(place)]
    stem = shared_state_path(Path(), spool, boot)
    if found := _with(own, stem.with_suffix(_STAGING)):
        return found
    for base in _bases():
        if base not in own and (left := _list_left(base, stem, believed(directory))):
            return _move(left, base)
    return _with(own, stem) or runtime_directory()


def runtime_directory() -> Path:
    """A directory of our own in memory, made when there is none. Raises NotOurs, OSError."""
    for base in _bases():
        if found := _within(base):
            return found
    raise NotOurs(
        f"there is no place in memory for files that no other user can change: {MEMORY} should belong to "
        "root and have mode 1777"
    )


def memory() -> Path:
    """The place in which `runtime_directory` is, or would be made."""
    usable = (base for base in _bases() if _is_usable(base) or _is_everybodys(base))
    return next(usable, MEMORY)


def shared_state_path(directory: Path, spool: bytes, boot: bytes) -> Path:
    """The path of a spool's shared state in this boot of the host."""
    return directory / f"bruce-{spool.hex()}-{boot.hex()}{_PAGE}"


def directory_word(directory: Path) -> int:
    """A number of a spool's directory that its copies lack; it survives mounts and moves on a filesystem."""
    status = directory.stat()
    return int(np.uint64(digest(f"{status.st_dev}:{status.st_ino}".encode())).astype(np.int64))


def own_shared_state_path(runtime: Path, directory: Path, spool: bytes, boot: bytes) -> Path:
    """The path of the shared state of the spool in `directory`; a copy's differs from its original's.

    A copy has the uuid of its original, and on the same host the boot. Raises FileNotFoundError.
    """
    path, own = shared_state_path(runtime, spool, boot), directory_word(directory)
    words = read_shared_state(path, believed(directory))
    if words is None or int(words[Field.DIRECTORY]) in (0, own):
        return path
    return path.with_name(f"{path.stem}-{own & 0xFFFFFFFFFFFFFFFF:016x}{path.suffix}")


def find_shared_state(directory: Path, spool: bytes, boot: bytes) -> Path:
    """The path of the shared state of the daemon on the spool in `directory`, for readers."""
    return own_shared_state_path(runtime_of(directory, spool, boot), directory, spool, boot)


def announced(directory: Path, header: Record) -> int:
    """The offset up to which the intake has announced frames of the segment with this header; 0: not known.

    It is known in the boot in which the segment was taken into use, after the death of all processes, too.
    """
    path = find_shared_state(directory, bytes(header["spool"]), bytes(header["boot"]))
    words = read_shared_state(path, believed(directory))
    return 0 if words is None else announced_in(int(words[Field.WRITTEN]), int(header["number"]))


def _bases() -> tuple[Path, Path]:
    # An operator may have made the first one a link: it is resolved here.
    return Path(os.environ.get("BRUCE_RUNTIME_DIRECTORY", "/run/bruce")).resolve(), MEMORY


def _places(owners: Owners) -> Iterator[Path]:
    """The directories that may have runtime files of these users."""
    for base in _bases():
        yield base
        yield from _named(base, owners)


def _named(base: Path, owners: Owners) -> list[Path]:
    """The paths in `base` with a name of these users' own directories; the caller checks the owner."""
    try:
        names = os.listdir(base)
    except OSError:
        return []
    matches = filter(None, map(_OWN_NAME.fullmatch, names))
    return sorted(base / match[0] for match in matches if int(match[1]) in owners)


def _with(places: list[Path], name: Path) -> Path | None:
    """The first of these that has a file of this name."""
    return next((place for place in places if os.path.lexists(place / name)), None)


def _is_believed(path: Path, owners: Owners) -> bool:
    try:
        os.close(open_believed(path, owners))
    except (NotOurs, OSError):
        return False
    return True


def _is_usable(place: Path) -> bool:
    """Whether a directory is ours, in memory, and lets us write."""
    return is_own_directory(place) and os.access(place, os.W_OK | os.X_OK) and _is_memory(place)


def _is_everybodys(base: Path) -> bool:
    """Whether everybody may write to a directory in memory, and no user touch another's files in it."""
    try:
        status = base.stat()
    except OSError:
        return False
    trusted = status.st_uid in (0, os.geteuid()) and bool(status.st_mode & stat.S_ISVTX)
    return trusted and os.access(base, os.W_OK | os.X_OK) and _is_memory(base)


def _within(base: Path) -> Path | None:
    """A place of our own in `base`; None where there can be none."""
    if _is_usable(base):
        return base
    if not _is_everybodys(base):
        return None
    uid = os.geteuid()
    with suppress(FileExistsError):
        _make(base / f"bruce-{uid}")
    if usable := [place for place in _named(base, {uid}) if _is_usable(place)]:
        return usable[0]
    path = base / f"bruce-{uid}-{secrets.token_hex(8)}"
    _make(path)
    log.warning("%s belongs to another user; %s is used in its place", base / f"bruce-{uid}", path)
    return path


def _make(path: Path) -> None:
    path.mkdir(mode=DIRECTORY_MODE)
    # Ours, in a place where no other user can rename it.
    path.chmod(DIRECTORY_MODE)


def _list_left(base: Path, stem: Path, owners: Owners) -> list[Path]:
    """The files that an earlier release has left in `base`. Raises NotOurs."""
    found = []
    for path in (base / stem.with_suffix(suffix) for suffix in _MOVED):
        try:
            status = path.lstat()
        except OSError:
            continue
        if status.st_uid == os.geteuid():
            _judge_left(status, path)
            found.append(path)
        elif status.st_uid in owners and status.st_uid != 0:
            raise NotOurs(
                f"{path} belongs to user {status.st_uid}, as the spool does, and may hold accepted messages: "
                "start bruce as that user"
            )
        else:
            log.warning("%s belongs to user %d, and is passed over", path, status.st_uid)
    return found


def _judge_left(status: os.stat_result, path: Path) -> None:
    """Raises NotOurs, NotAFile for a path that has a name of ours, belongs to us, and is no file of ours."""
    if path.suffix == _PAGE and not status.st_mode & stat.S_IWOTH:
        # Earlier releases let the umask say whether the group may write to it.
        status = os.stat_result((status.st_mode & ~stat.S_IWGRP, *status[1:]))
    judge(status, path)


def _move(left: list[Path], base: Path) -> Path:
    """Move files of an earlier release into a directory of our own. Raises NotOurs, OSError."""
    place = _within(base)
    if place is None:
        raise NotOurs(
            f"{left[-1]} may hold accepted messages, and others may change what is in {base}: "
            f"chmod go-w {base}, or chmod +t {base}, and start again"
        )
    for path in left:
        path.chmod(path.lstat().st_mode & 0o640)
        path.rename(place / path.name)
    log.info("moved the files of an earlier release from %s to %s", base, place)
    return place


def _is_memory(path: Path) -> bool:
    """Whether a directory is on tmpfs, by the mount table."""
    best, kind = "", ""
    for line in read_bytes(_MOUNTS, _MOUNTS_BYTES).decode("utf-8", "replace").splitlines():
        _, mount, fstype, *_ = line.split()
        inside = str(path) == mount or str(path).startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fstype
    return kind in ("tmpfs", "ramfs")
