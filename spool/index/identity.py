"""The identity of a spool: a uuid, which is in a file, in every segment, and in each Kafka record.

    identity := one line, the uuid; then perhaps "host NAME", the host's name when the spool was
                opened last; then perhaps "secret HEX"; then perhaps "in use"

A message is known by uuid and sequence number. `in use` says that numbers were given out. If the segments
are gone all the same, it is not known which, and the spool starts over under another uuid. So it does when a
power loss may have taken the very first segment, of which nothing was synced. A spool of an earlier release
has no host: only readers of many spools, on Spark, ask for it.

The secret is that of the segments (spool.format.segment_format), each of which has it, too: if one header is
damaged, another one or this file has it.
"""

from __future__ import annotations

import logging
import secrets
import socket
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from spool.errors import BadSpool, NoSpool
from spool.format.scan import read_header
from spool.format.segment import Identity, bound_spares
from spool.format.segment_format import SECRET_BYTES, Record
from spool.index.log_end import live_segment
from spool.layout import Layout
from spool.storage.disk import read_text, write_file

log = logging.getLogger("bruce.spool")

IDENTITY_BYTES = 1024
"""Of the file: four lines."""
_HOST, _SECRET, _IN_USE = "host ", "secret ", "in use\n"


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
    """The uuid for a process that recovers or repairs a spool; None without any.

    That of the file, unless no segment bears it: then that of most segments. Such a file came from
    elsewhere, and the messages are what counts.
    """
    borne = Counter(_borne(layout))
    try:
        spool = read_identity(layout)
    except NoSpool:
        return None
    return spool if spool in borne or not borne else borne.most_common(1)[0][0]


def _borne(layout: Layout) -> Iterator[bytes]:
    """The uuid in each header that can be read."""
    return (bytes(header["spool"]) for header in list_headers(layout))


def list_headers(layout: Layout) -> Iterator[Record]:
    """The headers of a spool's segments that can be read, in order."""
    for pair in layout.list_segments():
        with suppress(BadSpool, OSError):
            yield read_header(layout.segment(*pair))
    for _, header in bound_spares(layout):
        yield header


def read_host(layout: Layout) -> str | None:
    """The name of a spool's host when it was opened last; None when the file does not have it."""
    lines = _text(layout).splitlines()[1:2]
    return lines[0].removeprefix(_HOST) if lines and lines[0].startswith(_HOST) else None


def list_secrets(layout: Layout) -> list[bytes]:
    """The secrets in a spool's file and in the headers of its segments, the newest segment's first."""
    found = [bytes(header["secret"]) for header in list_headers(layout)][::-1]
    lines = [line for line in _text(layout).splitlines() if line.startswith(_SECRET)]
    with suppress(ValueError):
        found += [bytes.fromhex(line.removeprefix(_SECRET)) for line in lines]
    # Version 1 has none.
    return list(dict.fromkeys(one for one in found if len(one) == SECRET_BYTES and any(one)))


def own_identity(layout: Layout, boot: bytes, *, uncertain: bool = False) -> Identity:
    """The identity of the spool, for the process that opens it: made if missing, repaired if damaged.

    `boot`: of the host, 16 bytes. `uncertain`: numbers may have been given out of which nothing is left.
    """
    used, text = live_segment(layout) is not None, _text(layout)
    spool = agreed_identity(layout) or uuid.uuid4().bytes
    if used and not text.startswith(str(uuid.UUID(bytes=spool))):
        log.error("%s did not name the spool as its segments do; it was rewritten", layout.identity)
    if not used and uncertain:
        spool = uuid.uuid4().bytes
    if not used and text.endswith(_IN_USE):
        spool = uuid.uuid4().bytes
        log.error("the segments of %s are gone; it begins empty, with a new uuid", layout.directory)
    if not used:
        # Their totals are of segments of another log.
        layout.refused.unlink(missing_ok=True)
        layout.senders.unlink(missing_ok=True)
    known = list_secrets(layout) if used else []
    secret = known[0] if known else secrets.token_bytes(SECRET_BYTES)
    _write(layout, spool, secret, used=used)
    return Identity(spool, boot, secret)


def mark_in_use(layout: Layout) -> None:
    """Record that numbers are given out from here on. Only a guard: a full disk must not stop them."""
    try:
        if _text(layout).endswith(_IN_USE):
            return
        _write(layout, read_identity(layout), b"".join(list_secrets(layout)[:1]), used=True)
    except OSError as error:
        log.warning("%s could not be marked as in use: %s", layout.identity, error.strerror)


def _text(layout: Layout) -> str:
    try:
        return read_text(layout.identity, IDENTITY_BYTES)
    except FileNotFoundError:
        return ""


def _write(layout: Layout, spool: bytes, secret: bytes, *, used: bool) -> None:
    host = "".join(filter(str.isprintable, socket.gethostname()))
    wanted = f"{uuid.UUID(bytes=spool)}\n{_HOST}{host}\n{_SECRET}{secret.hex()}\n" + _IN_USE * used
    if wanted != _text(layout):
        write_file(layout.identity, wanted.encode())
