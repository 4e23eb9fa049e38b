"""The options of `format("bruce")`, as `pipeline.source.source` documents them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.errors import BadOption
from pipeline.source.rows import MODES

_COMMON = ("host", "mode", "failOnDataLoss")
OF_READER = (*_COMMON, "pushFilters", "fromSequence", "segments")
OF_STREAM = (*_COMMON, "maxBytesPerTrigger")
_PLACES = ("path", "paths")
"""The arguments of `load`."""


def check_known(options: Mapping[str, str], known: Sequence[str]) -> None:
    """Raise BadOption for an option that does not exist, in upper or lower case."""
    names = {name.lower() for name in (*known, *_PLACES)}
    for name in options:
        if name.lower() not in names:
            raise BadOption(f"there is no option {name[:100]!r}; the options are {', '.join(known)}")


class Choice(NamedTuple):
    """The part of each spool that is wanted."""

    everywhere: int
    """The first sequence number, of spools that `first` does not name."""
    first: Mapping[str, int]
    """The same by spool."""
    segments: Mapping[str, Sequence[int]]
    """By spool, the first sequence numbers of the segments to open."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Choice:
        """From `fromSequence` and `segments`. Raises BadOption."""
        text = options.get("fromSequence", "0")
        first = {} if text.isdecimal() else _by_spool(text)
        if first is None or not all(map(_is_number, first.values())):
            raise BadOption(
                f"fromSequence = {text[:100]!r} is no number, and no JSON object of numbers by spool"
            )
        named = options.get("segments", "{}")
        only = _by_spool(named)
        if only is None or not all(isinstance(one, list) for one in only.values()):
            raise BadOption(f"segments = {named[:100]!r} is no JSON object of lists of numbers by spool")
        return cls(int(text) if text.isdecimal() else 0, first, only)

    def begin(self, spool: str) -> int:
        """The first sequence number that is wanted of a spool."""
        return self.first.get(spool, self.everywhere)


def paths_of(options: Mapping[str, str]) -> list[str]:
    """The arguments of `load`: one path, or a list, which Spark hands on as JSON. Raises BadOption."""
    named = json.loads(options.get("paths", "[]"))
    paths = [*named, *([options["path"]] if "path" in options else [])]
    if not paths:
        raise BadOption("no spool is named: load(PATH), a directory, a glob, an address, or a list of them")
    return paths


def mode_of(options: Mapping[str, str]) -> str:
    """How to treat damaged frames: of MODES. Raises BadOption."""
    return _one_of(options, "mode", MODES)


def fails_on_loss(options: Mapping[str, str]) -> bool:
    """Whether removed messages end a query. Raises BadOption."""
    return _one_of(options, "failOnDataLoss", ("true", "false")) == "true"


def pushes_filters(options: Mapping[str, str]) -> bool:
    """Whether filters go to the footers. Raises BadOption."""
    return _one_of(options, "pushFilters", ("false", "true")) == "true"


def batch_bytes(options: Mapping[str, str]) -> int | None:
    """The size of a stream's batch; None: all there is. Raises BadOption."""
    text = options.get("maxBytesPerTrigger")
    if text is not None and not (text.isdecimal() and int(text)):
        raise BadOption(f"maxBytesPerTrigger = {text!r} is no number of bytes")
    return None if text is None else int(text)


def _one_of(options: Mapping[str, str], name: str, values: Sequence[str]) -> str:
    """The option as one of these values; the first by default."""
    text = options.get(name, values[0])
    if text.lower() not in values:
        raise BadOption(f"{name} = {text!r} is none of {', '.join(values)}")
    return text.lower()


def _by_spool(text: str) -> dict[str, Any] | None:
    """A JSON object; None if the text is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _is_number(value: object) -> bool:
    return type(value) is int and value >= 0
