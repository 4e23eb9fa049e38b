"""`brucectl inspect verify`, `repair` and `reindex`: finding damage in a spool, and mending it by plan."""

from __future__ import annotations

import time
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands.arguments import (
    AsJson,
    ConfigFile,
    Files,
    Hashes,
    SpoolDirectory,
    configured_spool,
    examples,
    file_errors,
    files_of,
    provenance,
    segment_files,
)
from cli.terminal import errors
from cli.terminal.errors import BadArgument

if TYPE_CHECKING:
    from spool.fsck.examination import Totals
    from spool.fsck.finding import Finding
    from spool.fsck.repair import Step

VERSION = 1
EXAMPLES = examples(
    "brucectl inspect repair",
    "brucectl inspect repair --spool /mnt/dead-host/var/lib/bruce --mode skip-damaged --apply",
    "brucectl inspect repair 00000000000000450560.seg --to mended.seg --mode skip-damaged --apply",
)
REINDEX_EXAMPLES = examples("brucectl inspect reindex", "brucectl inspect reindex --spool /srv/copy --json")
_MUCH_BYTES = 64 << 20
"""Interpreted loops see the end of a few messages sooner; of more than this they cost a tenth of a second."""
VERIFY_EXAMPLES = examples(
    "brucectl inspect verify",
    "brucectl inspect verify --spool /mnt/dead-host/var/lib/bruce --json",
    "brucectl inspect verify *.seg *.sent",
)


class ModeName(StrEnum):
    """The names of spool.fsck.repair.Mode, without its imports."""

    strict = "strict"
    truncate_tail = "truncate-tail"
    skip_damaged = "skip-damaged"


def verify(
    files: Files = None,
    *,
    spool: SpoolDirectory = None,
    hashes: Hashes = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Check every byte that bruce relies on, without changing any.

    Headers, frames, checksums, the chain of digests within and across segments, footers against what the
    frames hold, and the index, the marks, the outcome files of jobs and the ledger against the segments. A
    daemon may be at work.

    With --json one document of version 1: spool (null for files), segments, frames, messages, bytes, damaged,
    findings: path, offset, severity (damage or note), kind, sentence; tool, host, boot_id, made, and sha256
    with --hashes. Exits with 1 when something is damaged. A torn end, as a crash leaves it, is none, nor is
    a hole that a repair left. The first 100 damaged places of a segment are findings of their own, the others
    one finding with their sum.
    """
    from cli.terminal.output import show_findings, show_json
    from cli.terminal.progress import Progress
    from spool.fsck.check import Check
    from spool.fsck.finding import Severity
    from spool.layout import Layout
    from spool.native.kernel import compile_at_once
    from spool.storage.disk import allocated_bytes

    if files:
        directory, paths = None, segment_files(files, spool, config)
    else:
        directory = configured_spool(spool, config)
        paths = list(Layout(directory).segments.glob("*"))
    started = time.monotonic()
    with file_errors(), Progress("verifying", "bytes") as progress:
        size = sum(map(allocated_bytes, paths))
        if size > _MUCH_BYTES:
            compile_at_once()
        check = Check(lambda totals: progress.show(totals.bytes, size))
        found = list(check.files(paths) if directory is None else check.spool(Layout(directory)))
    damaged = any(finding.severity is Severity.DAMAGE for finding in found)
    if as_json:
        looked_at = files_of(directory) if directory else paths
        with file_errors():
            origin = provenance(looked_at if hashes else None)
        show_json(_report(directory, check.totals, found, damaged=damaged) | origin)
    else:
        show_findings(found, check.totals, time.monotonic() - started)
    raise typer.Exit(errors.FOUND if damaged else errors.FINE)


def _report(directory: Path | None, totals: Totals, found: list[Finding], *, damaged: bool) -> dict[str, Any]:
    return {
        "version": VERSION,
        "spool": None if directory is None else str(directory),
        **asdict(totals),
        "damaged": damaged,
        "findings": [
            {
                "path": str(finding.path),
                "offset": finding.offset,
                "severity": finding.severity,
                "kind": finding.kind,
                "sentence": finding.sentence,
            }
            for finding in found
        ],
    }


def repair(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A segment file by itself, instead of a spool.")
    ] = None,
    *,
    spool: SpoolDirectory = None,
    mode: Annotated[ModeName, typer.Option("--mode", help="How far to go.")] = ModeName.strict,
    apply: Annotated[bool, typer.Option("--apply", help="Do it, and not only say it.")] = False,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="COPY", help="Write the mended copy of FILE there.")
    ] = None,
    hashes: Hashes = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Say what is wrong with a spool that no process has open, what would be done, and what is lost; do it.

    Nothing is written without --apply, and nothing is thrown away: what is replaced goes to quarantine/ in
    the spool. strict: what a crash leaves is put in order, and nothing is touched where there is anything
    else. truncate-tail: also headers, names, footers, and damage up to the end of a segment. skip-damaged:
    also damage with good messages behind it, and metadata that cannot be read; every good message stays, and
    a hole is written for what is lost, which is then counted as damaged when it is delivered. A start does
    by itself what needs no copy of a segment.

    Marks are no index: where they cannot be read, what only they called delivered is sent again. A segment
    for which the disk gives an error may heal: only skip-damaged copies it, without what cannot be read.

    A FILE by itself is left as it is; with --apply a mended copy goes to --to.

    With --json one document of version 1: spool or file, mode, applied, steps: path, action, mode (the first
    that does it), sentence, kept (messages; null where that is no question), lost: first_sequence, messages
    of each range that cannot be recovered; gone, which is their sum, and of these delivered_before,
    discarded_before, and lost_messages, which are neither, as far as the marks know; tool, host, boot_id,
    made, and sha256 with --hashes. Exits with 1 when there is something to be done that was not done, or when
    a daemon has the spool: `brucectl inspect verify` checks one that is in use.
    """
    from cli.terminal.output import complain, show_json
    from spool.fsck.repair import Action, Mode, refused, strongest

    chosen = Mode(mode.value)
    with file_errors():
        if file is not None:
            where, steps = file, _repair_file(file, to, spool, chosen, apply=apply)
        else:
            if to is not None:
                raise BadArgument("--to is for a FILE: a spool is repaired where it is")
            where = configured_spool(spool, config)
            steps = _repair_spool(where, chosen, apply=apply)
        left = refused(steps, chosen)
        applied = apply and not (chosen is Mode.STRICT and left)
        if as_json:
            named = {"spool": None if file else str(where), "file": str(file) if file else None}
            report = {"version": VERSION, **named, "mode": chosen.value, "applied": applied}
            show_json({**report, "steps": [_object(one) for one in steps], **_origin(where, hashes=hashes)})
        else:
            _show(steps)
    if steps and not apply and not as_json:
        further = f"--mode {strongest(left).mode.value} " if left else ""
        can = any(one.action is not Action.NONE for one in steps)
        complain(f"nothing was changed; {further}--apply does it" if can else "nothing was changed")
    if left and apply:
        one = strongest(left)
        complain(
            f"{one.path}: {one.sentence}; --mode {one.mode.value} would mend it"
            + ("; nothing was done" if not applied else "")
        )
    raise typer.Exit(errors.FOUND if left or (steps and not applied) else errors.FINE)


def reindex(*, spool: SpoolDirectory = None, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Build the index of a spool that no process has open from its segments; the old one goes to quarantine.

    The index says how far the log is committed, and where to enter it. It is derived: a start builds it
    again, and losing it costs nothing. The marks are not: see `brucectl inspect repair`.

    With --json one document of version 1: spool, segment and next_sequence of the committed end; tool, host,
    boot_id, made.
    """
    from cli.terminal.output import say, show_json
    from spool.fsck.repair import reindex as build
    from spool.layout import Layout

    directory = configured_spool(spool, config)
    with file_errors():
        number, sequence = build(Layout(directory))
    if as_json:
        end = {"segment": number, "next_sequence": sequence}
        show_json({"version": VERSION, "spool": str(directory), **end, **provenance()})
    else:
        say(f"the index is built: committed up to message {sequence}, in segment {number}")


def _repair_spool(directory: Path, mode: Any, *, apply: bool) -> list[Step]:
    from spool.fsck.repair import apply as do
    from spool.fsck.repair import plan
    from spool.layout import Layout

    layout = Layout(directory)
    return do(layout, mode) if apply else plan(layout)


def _repair_file(file: Path, to: Path | None, spool: Path | None, mode: Any, *, apply: bool) -> list[Step]:
    from spool.fsck.repair import Mode, copy_file, plan_file, refused

    if spool is not None:
        raise BadArgument("give either a segment file or --spool, not both")
    if apply and to is None:
        raise BadArgument("give the mended copy a place: --to COPY")
    if to is not None and to.exists():
        raise BadArgument(f"{to} is there already: give the mended copy another place")
    steps = plan_file(file)
    if apply and to is not None and not (mode is Mode.STRICT and refused(steps, mode)):
        copy_file(file, to, mode)
    return steps


def _origin(where: Path, *, hashes: bool) -> dict[str, Any]:
    return provenance((files_of(where) if where.is_dir() else [where]) if hashes else None)


def _object(one: Step) -> dict[str, Any]:
    return {
        "path": str(one.path),
        "action": one.action.value,
        "mode": one.mode.value,
        "sentence": one.sentence,
        "kept": one.kept,
        "lost": [{"first_sequence": first, "messages": count} for first, count in one.lost.tolist()],
        "gone": one.messages_gone,
        "delivered_before": one.resolved.delivered,
        "discarded_before": one.resolved.discarded,
        "lost_messages": one.messages_lost,
    }


def _show(steps: list[Step]) -> None:
    from cli.terminal.output import FILE, NOTHING, say, show_rows

    heads = (FILE, "damage", "action", "mode", "kept", "gone", "gone from", "delivered before", "lost")
    rows = [
        (
            *(one.path.name, one.sentence, one.action.value, one.mode.value),
            NOTHING if one.kept is None else one.kept,
            one.messages_gone,
            ", ".join(str(first) for first, _ in one.lost.tolist()) or NOTHING,
            one.messages_gone - one.messages_lost,
            one.messages_lost,
        )
        for one in steps
    ]
    if rows:
        show_rows(
            heads,
            rows,
            clip=(FILE, "gone from"),
            fold=("damage",),
            spare=("gone from", "gone", "mode"),
        )
    else:
        say("nothing is to be done")
