"""The environment that bruce is installed in: packages that clash, and whether Spark can run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import packages_distributions
from importlib.util import find_spec

from cli.clashes import HOME, find_clashes, find_owners
from cli.doctor.finding import Finding, Level
from pipeline.requirements import columns_here, java_here, pyspark_here
from spool.intrinsics import kept_nowhere

_HIDES = {True: "hides", False: "is hidden by"}
_OWN = "give bruce an environment of its own"


def look() -> Iterator[Finding]:
    """All checks of this environment."""
    yield check_owners(packages_distributions())
    yield check_path(sys.path)
    yield check_loops(kept_nowhere())
    if not find_spec("pyspark"):
        yield Finding(
            "pyspark",
            Level.OK,
            "no pyspark: brucectl spark needs bruce-spool[spark], all else does not",
        )
        return
    spark: dict[str, Callable[[], tuple[bool, str]]] = {
        "pyspark": pyspark_here,
        "java": java_here,
        "arrow": columns_here,
    }
    for name, ask in spark.items():
        ok, sentence = ask()
        # What is missing is said with what to do, as `brucectl spark` says it.
        yield Finding(name, Level.OK if ok else Level.PROBLEM, sentence)


def check_owners(distributions: Mapping[str, Sequence[str]]) -> Finding:
    """Whether other distributions have packages with our names: the last one installed overwrites."""
    if found := find_owners(distributions):
        listed = "; ".join(f"{package} is of {', '.join(others)}, too" for package, others in found.items())
        return Finding("distributions", Level.PROBLEM, f"packages clash: {listed}", _OWN)
    return Finding("distributions", Level.OK, "no other distribution has a package with a name of bruce's")


def check_loops(unkept: Sequence[str]) -> Finding:
    """Whether compiled loops are kept; `unkept`: files of those that are not."""
    name = "compiled loops"
    if unkept:
        return Finding(
            name,
            Level.ADVICE,
            f"nothing can be written beside {unkept[0]}, nor at home: each start compiles for half a minute",
            "set NUMBA_CACHE_DIR to a directory that who runs bruce may write to",
        )
    return Finding(name, Level.OK, "they are compiled once, and kept")


def check_path(path: Sequence[str], home: str = HOME) -> Finding:
    """Whether the path (as sys.path) has modules with our names elsewhere: the first hides the others."""
    found = [f"{c.package} in {c.place} {_HIDES[c.first]} bruce's" for c in find_clashes(path, home)]
    if found:
        return Finding("path", Level.PROBLEM, f"packages clash: {'; '.join(found)}", _OWN)
    return Finding(
        "path",
        Level.OK,
        f"bruce's packages are those in {home}, and nothing else on the path has their names",
    )
