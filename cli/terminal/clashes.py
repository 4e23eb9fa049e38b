"""Packages of other people that have the names of ours: the first one in the path hides the other.

Our packages have short names (DESIGN section 3). In an environment of bruce's own no other package has them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from typing import NamedTuple

PACKAGES = (
    *("bruce_client", "cli", "dispatch", "ingest", "pipeline", "router", "spool", "status"),
    *("pyspark_bruce", "pyspark_bruce_kafka"),
)
DISTRIBUTIONS = {"bruce-spool", "bruce-client"}
HOME = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))
"""The folder that holds our packages."""


class Clash(NamedTuple):
    """A package of ours whose name is used in another folder, too."""

    package: str
    place: str
    """The folder that has the other one."""
    first: bool
    """Whether Python finds the other one instead of ours."""


def find_clashes(path: Sequence[str], home: str = HOME) -> Iterator[Clash]:
    """Modules and packages on this path (as sys.path) that are called like ours, besides those in `home`."""
    seen = set()
    for entry in path:
        place = os.path.realpath(entry)  # an empty entry is the current folder
        if place in seen:
            continue
        seen.add(place)
        for package in PACKAGES if place != home else ():
            spec = PathFinder.find_spec(package, [place])
            # Without a loader it is a folder that has only the name; any real package goes before it.
            if spec and spec.loader and spec.origin:
                yield Clash(package, place, home not in seen)


def find_owners(distributions: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """By package of ours, other distributions that say it is theirs.

    `distributions`: by package.
    """
    found = {name: sorted(set(distributions.get(name, ())) - DISTRIBUTIONS) for name in PACKAGES}
    return {name: others for name, others in found.items() if others}
