"""`brucectl inspect verify`: every byte that bruce relies on."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cli import exits
from cli.arguments import AsJson, ConfigFile, SpoolDirectory, configured_spool, examples, file_errors
from cli.commands.inspect.options import Files, Hashes, segment_files

if TYPE_CHECKING:
    from spool.examination import Totals
    from spool.finding import Finding

VERSION = 1
_MUCH_BYTES = 64 << 20
"""Interpreted loops see the end of a few messages sooner; of more than this they cost a tenth of a second."""
EXAMPLES = examples(
    "brucectl inspect verify",
    "brucectl inspect verify --spool /mnt/dead-host/var/lib/bruce --json",
    "brucectl inspect verify *.seg *.sent",
)


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
    a gap that a repair left.
    """
    from cli.output import show_findings, show_json
    from cli.progress import Progress
    from spool.check import Check
    from spool.disk import allocated_bytes
    from spool.finding import Severity
    from spool.kernel import compile_at_once
    from spool.layout import Layout

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
        from cli.provenance import files_of, provenance

        looked_at = files_of(directory) if directory else paths
        with file_errors():
            origin = provenance(looked_at if hashes else None)
        show_json(_report(directory, check.totals, found, damaged=damaged) | origin)
    else:
        show_findings(found, check.totals, time.monotonic() - started)
    raise typer.Exit(exits.FOUND if damaged else exits.FINE)


def _report(directory: Path | None, totals: Totals, found: list[Finding], *, damaged: bool) -> dict[str, Any]:
    return {
        "version": VERSION,
        "spool": None if directory is None else str(directory),
        **asdict(totals),
        "damaged": damaged,
        "findings": [{**asdict(finding), "path": str(finding.path)} for finding in found],
    }
