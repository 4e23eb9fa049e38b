"""Whose spool this is: a uuid, which stands in a file, in every segment, and in each Kafka record.

    identity := one line, the uuid; then perhaps "host NAME", what the host was called when the spool was
                opened last; then perhaps "in use"

A message is known by uuid and sequence number. `in use` says that numbers were given out; when the segments
are gone all the same, nobody knows which, and the spool begins anew under another uuid. So it does when a
power loss may have taken the very first segment, of which nothing was synced. A spool of an earlier release
has no host: only readers of many spools, on Spark, ask for it.
"""

from __future__ import annotations

import logging
import socket
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from spool.disk import read_text, write_file
from spool.errors import BadSpool, NoSpool
from spool.layout import Layout
from spool.live import live_segment
from spool.scan import read_header
from spool.segment import bound_spares

log = logging.getLogger("bruce.spool")

IDENTITY_BYTES = 1024
"""Of the file: three lines."""
_HOST, _IN_USE = "host ", "in use\n"


def read_identity(layout: Layout) -> bytes:
    """The uuid of a spool, 16 bytes. Raises NoSpool when the directory holds none."""
    try:
        return uuid.UUID(_text(layout).partition("\n")[0]).bytes
    except ValueError:
        pass
    if spool := next(_borne(layout), None):
        return spool
    raise NoSpool(f"{layout.directory} holds no spool; see [spool] directory")


def agreed_identity(layout: Layout) -> bytes | None:
    """The uuid for whoever puts a spool in order; None when nothing says it.

    That of the file, unless no segment bears it: then that of most segments. Such a file was brought along
    from elsewhere, and the messages are what counts.
    """
    borne = Counter(_borne(layout))
    try:
        spool = read_identity(layout)
    except NoSpool:
        return None
    return spool if spool in borne or not borne else borne.most_common(1)[0][0]


def _borne(layout: Layout) -> Iterator[bytes]:
    """The uuid in each header that can be read."""
    for pair in layout.list_segments():
        with suppress(BadSpool, OSError):
            yield bytes(read_header(layout.segment(*pair))["spool"])
    for _, header in bound_spares(layout):
        yield bytes(header["spool"])


def read_host(layout: Layout) -> str | None:
    """What the host of a spool was called when it was opened last; None when the file does not say."""
    lines = _text(layout).splitlines()[1:2]
    return lines[0].removeprefix(_HOST) if lines and lines[0].startswith(_HOST) else None


def own_identity(layout: Layout, *, uncertain: bool = False) -> bytes:
    """The same for whoever opens the spool: made when there is none, mended when it is damaged.

    `uncertain`: numbers may have been given out of which nothing is left.
    """
    used, text = live_segment(layout) is not None, _text(layout)
    spool = agreed_identity(layout) or uuid.uuid4().bytes
    if used and not text.startswith(str(uuid.UUID(bytes=spool))):
        log.error("%s did not name the spool as its segments do; it was written anew", layout.identity)
    if not used and uncertain:
        spool = uuid.uuid4().bytes
    if not used and text.endswith(_IN_USE):
        spool = uuid.uuid4().bytes
        log.error("the segments of %s are gone; it begins anew, with a new uuid", layout.directory)
    if not used:
        # What they count was in segments of another log.
        layout.refused.unlink(missing_ok=True)
        layout.senders.unlink(missing_ok=True)
    _write(layout, spool, used=used)
    return spool


def mark_in_use(layout: Layout) -> None:
    """Numbers are given out from here on. Only a guard: a full disk must not stop them."""
    try:
        _write(layout, read_identity(layout), used=True)
    except OSError as error:
        log.warning("%s could not be marked as in use: %s", layout.identity, error.strerror)


def _text(layout: Layout) -> str:
    try:
        return read_text(layout.identity, IDENTITY_BYTES)
    except FileNotFoundError:
        return ""


def _write(layout: Layout, spool: bytes, *, used: bool) -> None:
    host = "".join(filter(str.isprintable, socket.gethostname()))
    wanted = f"{uuid.UUID(bytes=spool)}\n{_HOST}{host}\n" + _IN_USE * used
    if wanted != _text(layout):
        write_file(layout.identity, wanted.encode())
