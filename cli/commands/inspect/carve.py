"""`brucectl inspect carve`: messages that no file system knows of any more."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands.arguments import AsJson, Hashes, examples, file_errors, provenance
from cli.terminal import errors
from cli.terminal.errors import BadArgument

if TYPE_CHECKING:
    from spool.format.scan import Chunk
    from spool.fsck.frame_recovery import Run

VERSION = 1
EXAMPLES = examples(
    "brucectl inspect carve disk.img",
    "brucectl inspect carve disk.img --secrets-from /var/lib/bruce",
    "brucectl inspect carve disk.img --records | jq -r .value",
    "brucectl inspect carve disk.img --secrets-from /mnt/old --datagrams | brucectl send --datagrams",
)


def carve(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="A raw disk image, or any other file.")],
    *,
    spools: Annotated[
        list[Path] | None,
        typer.Option(
            "--secrets-from",
            metavar="DIRECTORY",
            help="A spool whose frames may be in IMAGE; can be repeated.",
        ),
    ] = None,
    records: Annotated[bool, typer.Option("--records", help="Print the messages, as JSON lines.")] = False,
    datagrams: Annotated[
        bool,
        typer.Option(
            "--datagrams", help="Write the verified datagrams, as `inspect export --datagrams` does."
        ),
    ] = False,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="With --datagrams, write those that are not verified, too.")
    ] = False,
    hashes: Hashes = False,
    as_json: AsJson = False,
) -> None:
    """Find frames in a raw disk image, or in what is left of a deleted segment, and print what they hold.

    Frames that follow one another are a run: its offset, sequence numbers, frames, messages, times. Frames
    that are there twice count once. Compressed segments are not found.

    A run is verified if its frames have the secret of a spool that --secrets-from names. All others are found
    by their form alone, as are all frames of format version 1: a sender can make such frames, and put them
    into a message. Rows, runs and records say which they are, a sentence on standard error counts the
    messages that are not verified, and --datagrams leaves these out unless --unverified is given.

    With --json one document of version 1: image, runs: offset, verified, first_sequence, next_sequence,
    frames, messages, again, first_received, last_received; tool, host, boot_id, made, and sha256 with
    --hashes. Exits with 1 when nothing is found.
    """
    from cli.terminal.output import show_json, show_lines

    _check(records + datagrams + as_json, datagrams=datagrams, unverified=unverified)
    runs: dict[int, Run] = {}
    with file_errors():
        chunks = _chunks(image, spools or [], runs)
        if records:
            show_lines(_records(chunks), cut=False)
        else:
            for run, chunk in chunks:
                if datagrams and (run.verified or unverified):
                    _write(chunk)
    if as_json:
        found = {"version": VERSION, "image": str(image), "runs": [_row(run) for run in runs.values()]}
        with file_errors():
            show_json(found | provenance([image] if hashes else None))
    elif not (records or datagrams):
        _show(list(runs.values()))
    _warn(runs.values(), left_out=datagrams and not unverified)
    raise typer.Exit(errors.FINE if any(run.messages for run in runs.values()) else errors.FOUND)


def _check(forms: int, *, datagrams: bool, unverified: bool) -> None:
    """`forms`: how many forms of output are asked for. Raises BadArgument."""
    if forms > 1:
        raise BadArgument("give one of --records, --datagrams and --json")
    if unverified and not datagrams:
        raise BadArgument("--unverified goes with --datagrams; all else says of each message which it is")
    if datagrams and sys.stdout.isatty():
        raise BadArgument("datagrams are no text: send them to a file, or to `brucectl send --datagrams`")


def _chunks(image: Path, spools: list[Path], runs: dict[int, Run]) -> Iterator[tuple[Run, Chunk]]:
    """Good frames of an image, each once; `runs`, by offset, is filled on the way. Raises BadArgument."""
    from spool.fsck.frame_recovery import Carver
    from spool.index.identity import list_secrets
    from spool.layout import Layout

    if not image.is_file():
        raise BadArgument(f"{image} is no file: copy a disk into one first, as `dd` does")
    for spool in spools:
        if not spool.is_dir() or not list_secrets(Layout(spool)):
            raise BadArgument(
                f"{spool} holds no spool with a secret; leave --secrets-from out, or name another"
            )
    carver = Carver(image, spools)
    try:
        for run, chunk in carver.runs():
            runs[run.offset] = run
            if len(chunk.frames):
                yield run, chunk
    finally:
        carver.close()


def _warn(runs: Iterable[Run], *, left_out: bool) -> None:
    from cli.terminal.output import complain
    from spool.words import agreeing

    if messages := sum(run.messages for run in runs if not run.verified):
        then = "; left out (see --unverified)" if left_out else ""
        doubtful = agreeing(messages, "message")
        complain(f"{doubtful} not verified, perhaps forged by a sender (see --secrets-from){then}")


def _records(chunks: Iterator[tuple[Run, Chunk]]) -> Iterator[str]:
    from cli.inspect.records import as_object
    from spool.format.batch import Topics, decode
    from spool.format.scan import digest_address

    topics = Topics.of_reader()
    for run, chunk in chunks:
        batch = decode(chunk.data, chunk.offset, chunk.frames, topics, digest_address())
        for row in range(len(batch)):
            yield json.dumps({**as_object(batch, row, values=True), "verified": run.verified})


def _write(chunk: Chunk) -> None:
    from spool.format.batch import Topics, decode
    from spool.format.scan import digest_address

    batch = decode(chunk.data, chunk.offset, chunk.frames, Topics(), digest_address())
    sys.stdout.buffer.writelines(batch.datagram(row) for row in range(len(batch)))


def _row(run: Run) -> dict[str, Any]:
    from cli.terminal.output import as_utc

    return {
        "offset": run.offset,
        "verified": run.verified,
        "first_sequence": run.first_sequence,
        "next_sequence": run.next_sequence,
        "frames": run.frames,
        "messages": run.messages,
        "again": run.again,
        "first_received": as_utc(run.first_received_ns),
        "last_received": as_utc(run.last_received_ns),
    }


def _show(runs: list[Run]) -> None:
    from cli.terminal.output import complain, show_rows
    from spool.words import utc

    heads = ("byte", "verified", "first", "next", "frames", "messages", "again", "received", "to")
    rows = [
        (
            *(run.offset, "yes" if run.verified else "no", run.first_sequence, run.next_sequence),
            *(run.frames, run.messages, run.again),
            *(utc(run.first_received_ns), utc(run.last_received_ns)),
        )
        for run in runs
    ]
    if not rows:
        complain("no frame was found")
    show_rows(heads, rows, spare=("again", "frames", "next", "to"))
