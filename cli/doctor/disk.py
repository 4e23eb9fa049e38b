"""The disk under a spool: its filesystem, its room, and who may do what in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from cli.doctor import Finding, Level
from spool.layout import Layout
from spool.options import Space, SpoolOptions, reserve
from spool.storage import disk
from spool.storage.disk import allocated_bytes, free_bytes
from spool.words import size_in_words


def look(options: SpoolOptions) -> Iterator[Finding]:
    """All checks of the disk that this spool is on, or would be on."""
    layout = Layout(options.directory)
    place = existing(options.directory)
    probe = place == options.directory and os.access(place, os.W_OK)
    try:
        yield from check_filesystem(place, probe=probe)
        yield check_room(options, Space(used_bytes(layout), *free_bytes(place)))
        if place != options.directory:
            yield check_parent(options.directory, place, writable=os.access(place, os.W_OK))
            return
        yield from check_open_to_others(options.directory, place.stat().st_mode)
        yield check_owners(options.directory, place.stat().st_uid, owners(layout))
    except PermissionError as error:
        yield Finding(
            "permissions",
            Level.UNKNOWN,
            f"{error.filename} cannot be looked at by this user",
            "ask again as root, or as the user that bruce runs as",
        )


def existing(path: Path) -> Path:
    """The directory, or the nearest above it that is there and can be seen."""
    return next(place for place in (path, *path.parents) if os.path.isdir(place))


def used_bytes(layout: Layout) -> int:
    """Bytes of disk that segments and spares take. Raises PermissionError."""
    try:
        names = os.listdir(layout.segments)
    except FileNotFoundError:
        return 0
    return sum(allocated_bytes(layout.segments / name) for name in names)


def check_filesystem(place: Path, *, probe: bool) -> Iterator[Finding]:
    """Promises that the filesystem does not make. `probe`: also try to reserve a file."""
    name, found = "filesystem", list(disk.weaknesses(place, probe=probe))
    for sentence, remedy in found:
        yield Finding(name, Level.ADVICE, sentence, remedy)
    if not found:
        told = "promises what a spool needs" if probe else "is of no kind that is known to promise less"
        yield Finding(name, Level.OK, f"the filesystem of {place} {told}")


def check_room(options: SpoolOptions, space: Space) -> Finding:
    """Whether `max_bytes` fit on the disk beside what others have there."""
    name = "room"
    if space.size == disk.UNKNOWN_BYTES:
        return Finding(
            name,
            Level.UNKNOWN,
            f"the filesystem of {options.directory} does not tell its free space, so whether the "
            f"{size_in_words(options.max_bytes)} of [spool] max_bytes fit is not known",
            "compare max_bytes with what is known of that filesystem",
        )
    least_free = reserve(options.min_free_bytes, space.size)
    most = space.used + max(0, space.free - least_free)
    if space.free < least_free:
        return Finding(
            name,
            Level.PROBLEM,
            f"the disk of {options.directory} has {size_in_words(space.free)} free, less than the "
            f"{size_in_words(least_free)} of [spool] min_free_bytes: nothing delivered is kept, and the "
            "spool fills",
            "free some of it",
        )
    if most < options.max_bytes:
        return Finding(
            name,
            Level.ADVICE,
            f"[spool] max_bytes is {size_in_words(options.max_bytes)}, and the disk of {options.directory} "
            f"has room for {size_in_words(most)}: the spool is full before it has reached max_bytes",
            "free some of it, or lower max_bytes",
        )
    return Finding(
        name,
        Level.OK,
        f"the {size_in_words(options.max_bytes)} of [spool] max_bytes fit on the disk of the spool",
    )


def check_parent(directory: Path, place: Path, *, writable: bool) -> Finding:
    """Whether a spool that is not there yet can be made."""
    if writable:
        return Finding("permissions", Level.OK, f"{directory} is not there yet: bruce run makes it")
    return Finding(
        "permissions",
        Level.ADVICE,
        f"{directory} is not there, and this user cannot make it in {place}",
        "where bruce is not run by root, make it, and give it to bruce's user by chown",
    )


def check_open_to_others(directory: Path, mode: int) -> Iterator[Finding]:
    """Whether everybody on the host can read or change what waits. `mode`: of the spool's directory."""
    if mode & stat.S_IWOTH:
        yield Finding(
            "permissions",
            Level.PROBLEM,
            f"everybody on this host can change what is in {directory}",
            f"chmod o-rwx {directory}",
        )
    elif mode & stat.S_IXOTH:
        yield Finding(
            "permissions",
            Level.ADVICE,
            f"everybody on this host can look into {directory}, where messages are stored as they were sent",
            f"chmod o-rwx {directory}",
        )


def owners(layout: Layout) -> dict[int, Path]:
    """By user id, one of the files that belong to it. Raises PermissionError."""
    found: dict[int, Path] = {}
    for place in (layout.directory, layout.segments, layout.index, layout.delivery):
        try:
            names = os.listdir(place)
        except FileNotFoundError:
            continue
        for name in names:
            try:
                found.setdefault((place / name).lstat().st_uid, place / name)
            except FileNotFoundError:
                continue  # retired while we looked
    return found


def check_owners(directory: Path, owner: int, found: Mapping[int, Path]) -> Finding:
    """Whether all of a spool belongs to one user: files of another user lock the daemon out."""
    strange = {uid: path for uid, path in found.items() if uid != owner}
    if not strange:
        return Finding("permissions", Level.OK, f"all that is in {directory} belongs to user {owner}")
    listed = ", ".join(f"{path} to user {uid}" for uid, path in sorted(strange.items()))
    return Finding(
        "permissions",
        Level.PROBLEM,
        f"{directory} belongs to user {owner}, but {listed}: the daemon may find files that it cannot write",
        f"chown -R --reference={directory} {directory}",
    )
