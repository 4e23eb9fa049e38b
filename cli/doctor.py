"""What a host may have wrong: a list of checks, each of which says how things are in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from typing import NamedTuple

from cli.clashes import HOME, find_clashes, find_owners
from pipeline.requirements import columns_here, java_here, pyspark_here

_HIDES = {True: "hides", False: "is hidden by"}


class Check(NamedTuple):
    """How one thing is."""

    ok: bool
    sentence: str


def examine() -> list[Check]:
    """All checks, on this host and in this environment."""
    checks = [check_owners(packages_distributions()), check_path(sys.path)]
    if not find_spec("pyspark"):
        return [
            *checks,
            Check(True, "no pyspark: brucectl spark needs bruce-spool[spark], all else does not"),
        ]
    spark: Sequence[Callable[[], tuple[bool, str]]] = (pyspark_here, java_here, columns_here)
    return [*checks, *(Check(*look()) for look in spark)]


def check_owners(distributions: Mapping[str, Sequence[str]]) -> Check:
    """Whether other distributions have packages with our names: the last one installed overwrites."""
    if found := find_owners(distributions):
        listed = "; ".join(f"{package} is of {', '.join(others)}, too" for package, others in found.items())
        return Check(False, f"packages clash: {listed}. Give bruce an environment of its own")
    return Check(True, "no other distribution has a package with a name of bruce's")


def check_path(path: Sequence[str], home: str = HOME) -> Check:
    """Whether the path (as sys.path) has modules with our names elsewhere: the first hides the others."""
    found = [f"{c.package} in {c.place} {_HIDES[c.first]} bruce's" for c in find_clashes(path, home)]
    if found:
        return Check(False, f"packages clash: {'; '.join(found)}. Give bruce an environment of its own")
    return Check(True, f"bruce's packages are those in {home}, and nothing else on the path has their names")
