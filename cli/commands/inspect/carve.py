"""`brucectl inspect carve`: messages that no file system knows of any more."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import exits
from cli.arguments import AsJson, examples, file_errors
from cli.commands.inspect.options import Hashes
from cli.errors import BadArgument

if TYPE_CHECKING:
    from spool.carving import Run
    from spool.scan import Chunk

VERSION = 1
EXAMPLES = examples(
    "brucectl inspect carve disk.img",
    "brucectl inspect carve disk.img --records | jq -r .value",
    "brucectl inspect carve disk.img --datagrams | brucectl send --datagrams",
)


def carve(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="A raw disk image, or any other file.")],
    *,
    records: Annotated[bool, typer.Option("--records", help="Print the messages, as JSON lines.")] = False,
    datagrams: Annotated[
        bool, typer.Option("--datagrams", help="Write the datagrams, as `inspect export --datagrams` does.")
    ] = False,
    hashes: Hashes = False,
    as_json: AsJson = False,
) -> None:
    """Find frames in a raw disk image, or in what is left of a deleted segment, and print what they hold.

    Each is found by its magic and verified by its checksum. Frames that follow one another are a run: where
    it lies, its sequence numbers, frames, messages, times. What lies there twice counts once. Compressed
    segments are not found.

    With --json one document of version 1: image, runs: offset, first_sequence, next_sequence, frames,
    messages, again, first_received, last_received; tool, host, boot_id, made, and sha256 with --hashes. Exits
    with 1 when nothing is found.
    """
    from cli.output import show_json, show_lines

    if records + datagrams + as_json > 1:
        raise BadArgument("give one of --records, --datagrams and --json")
    if datagrams and sys.stdout.isatty():
        raise BadArgument("datagrams are no text: send them to a file, or to `brucectl send --datagrams`")
    runs: dict[int, Run] = {}
    with file_errors():
        chunks = _chunks(image, runs)
        if records:
            show_lines(_records(chunks), cut=False)
        else:
            for chunk in chunks:
                if datagrams:
                    _write(chunk)
    if as_json:
        from cli.provenance import provenance

        found = {"version": VERSION, "image": str(image), "runs": [_row(run) for run in runs.values()]}
        with file_errors():
            show_json(found | provenance([image] if hashes else None))
    elif not (records or datagrams):
        _show(list(runs.values()))
    raise typer.Exit(exits.FINE if any(run.messages for run in runs.values()) else exits.FOUND)


def _chunks(image: Path, runs: dict[int, Run]) -> Iterator[Chunk]:
    """Good frames of an image, each once; `runs`, by offset, is filled on the way. Raises BadArgument."""
    from spool.carving import carve as carved

    if not image.is_file():
        raise BadArgument(f"{image} is no file: copy a disk into one first, as `dd` does")
    for run, chunk in carved(image):
        runs[run.offset] = run
        if len(chunk.frames):
            yield chunk


def _records(chunks: Iterator[Chunk]) -> Iterator[str]:
    from cli.records import as_object
    from spool.decode import decode
    from spool.record import Topics
    from spool.scan import digest_address

    topics = Topics()
    for chunk in chunks:
        batch = decode(chunk.data, chunk.offset, chunk.frames, topics, digest_address())
        for row in range(len(batch)):
            yield json.dumps(as_object(batch, row, values=True))


def _write(chunk: Chunk) -> None:
    from spool.decode import decode
    from spool.record import Topics
    from spool.scan import digest_address

    batch = decode(chunk.data, chunk.offset, chunk.frames, Topics(), digest_address())
    sys.stdout.buffer.writelines(batch.datagram(row) for row in range(len(batch)))


def _row(run: Run) -> dict[str, Any]:
    from cli.records import as_utc

    return {
        "offset": run.offset,
        "first_sequence": run.first_sequence,
        "next_sequence": run.next_sequence,
        "frames": run.frames,
        "messages": run.messages,
        "again": run.again,
        "first_received": as_utc(run.first_received_ns),
        "last_received": as_utc(run.last_received_ns),
    }


def _show(runs: list[Run]) -> None:
    from cli.output import complain, show_rows
    from cli.records import as_local

    heads = ("byte", "first", "next", "frames", "messages", "again", "first received", "last received")
    rows = [
        (
            *(run.offset, run.first_sequence, run.next_sequence, run.frames, run.messages, run.again),
            *(as_local(run.first_received_ns), as_local(run.last_received_ns)),
        )
        for run in runs
    ]
    if not rows:
        complain("no frame was found")
    show_rows(heads, rows)
