"""Which spool this is, and of which host: from its file, else from its segments."""

from __future__ import annotations

import errno
import os
import socket
import uuid
from pathlib import Path

import pytest

from spool.errors import NoSpool, ReadFailed
from spool.index import identity
from spool.index.identity import read_host, read_identity
from spool.layout import Layout
from tests.spool.fixture import SpoolFixture


def test_missing_segments_never_restart_the_numbering_under_the_same_uuid(spool: SpoolFixture) -> None:
    """When the segments are gone, so is the uuid: no (uuid, sequence) is used for two messages."""
    spool.fill(3)
    spool.step()
    before = spool.identity.spool
    spool.crash()
    for path in spool.layout.segments.iterdir():
        path.unlink()
    spool.open()
    assert spool.identity.spool != before
    spool.reopen()
    assert spool.identity.spool != before


def test_a_spool_that_never_held_anything_keeps_its_uuid(spool: SpoolFixture) -> None:
    """Starting twice without a message is one spool: its staging is found again."""
    before = spool.identity.spool
    spool.stop()
    spool.open()
    assert spool.identity.spool == before


@pytest.mark.parametrize("text", [None, "", "not a uuid\n", "\xff" * 40])
def test_a_missing_or_damaged_identity_is_taken_from_the_segments(
    spool: SpoolFixture, text: str | None
) -> None:
    """The uuid is in every segment; the file is restored from there, and numbers go on."""
    sent = spool.fill(30)
    before = spool.identity.spool
    spool.crash()
    if text is None:
        spool.layout.identity.unlink()
    else:
        spool.layout.identity.write_text(text, encoding="latin-1")
    spool.open()
    assert spool.identity.spool == before == read_identity(spool.layout)
    assert spool.layout.identity.read_text().startswith(str(uuid.UUID(bytes=before)))
    sent += spool.fill(1)
    assert spool.records() == list(enumerate(sent))


def test_the_identity_says_the_host(spool: SpoolFixture) -> None:
    """Opening a spool writes the host's name to it; an identity of an earlier release is completed."""
    spool.fill(1)
    spool.stop()
    uuid_line = f"{uuid.UUID(bytes=spool.identity.spool)}\n"
    secret = f"secret {spool.identity.secret.hex()}\n"
    whole = f"{uuid_line}host {socket.gethostname()}\n{secret}in use\n"
    for text in (
        whole,
        f"{uuid_line}host {socket.gethostname()}\nin use\n",
        f"{uuid_line}in use\n",
        uuid_line,
        f"{uuid_line}host another\nin use\n",
    ):
        spool.layout.identity.write_text(text)
        assert read_host(spool.layout) == (text.splitlines()[1][5:] if "host" in text else None)
        spool.open()
        assert spool.layout.identity.read_text() == whole
        assert spool.identity.spool == read_identity(spool.layout)
        spool.stop()


def test_no_spool_is_said_so(tmp_path: Path) -> None:
    """A directory that holds no spool is named in the error."""
    with pytest.raises(NoSpool, match=str(tmp_path)):
        read_identity(Layout(tmp_path))


def test_an_identity_that_the_disk_does_not_give(
    spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is only a guard: segments are named, and committed, without it."""

    def refuse(path: Path, *_: object) -> None:
        raise ReadFailed(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(identity, "read_text", refuse)
    identity.mark_in_use(spool.layout)
