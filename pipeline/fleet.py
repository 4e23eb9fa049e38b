"""The plans of many spools, wherever they lie: paths and globs of this host, and addresses."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pipeline.plan import SpoolPlan, find_spools, plan_spool
from pipeline.remote import Remote, find_remote, is_address, local_path, mirror
from spool.layout import Layout


def plan_spools(
    paths: Iterable[str],
    host: str | None = None,
    since: Mapping[str, int] | None = None,
    *,
    passing: bool = False,
) -> Iterator[SpoolPlan]:
    """A plan of each spool, as pipeline.plan makes it; of one at an address, as of a copy.

    `since` and `passing` as plan_spool has them. Raises NoSpool, BadOption, UnknownVersion, OSError.
    """
    paths = list(map(local_path, paths))
    for layout in find_spools(path for path in paths if not is_address(path)):
        yield plan_spool(layout, host, since, passing=passing)
    found = {spool.address: spool for path in paths if is_address(path) for spool in find_remote(path)}
    for spool in found.values():
        yield _plan_remote(spool, host, since)


def list_unreadable(paths: Iterable[str]) -> list[str]:
    """The segments of these spools whose headers are damaged: no job reads them. Raises as plan_spools."""
    return [place for plan in plan_spools(paths, passing=True) for place in plan.unreadable]


def _plan_remote(spool: Remote, host: str | None, since: Mapping[str, int] | None) -> SpoolPlan:
    with tempfile.TemporaryDirectory(prefix="bruce-") as directory:
        mirror(spool, Path(directory))
        plan = plan_spool(Layout(Path(directory)), host, since)
    damaged = [replace(one, file=replace(one.file, directory=spool.address)) for one in plan.damaged]
    parts = [replace(part, directory=spool.address) for part in plan.parts]
    return replace(plan, parts=parts, damaged=damaged)
