"""What jobs delivered, and the marks do not have: outcome files before they are taken over.

Whoever wants to know what became of messages reads these first and the marks then: what is taken over in
between is in both, and in neither otherwise.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool.catalogue import Catalogue
from spool.errors import BadSpool
from spool.frame import SEQUENCE
from spool.index import read_committed
from spool.layout import Layout
from spool.outcome_file import SUFFIX, OutcomeFile, count_outcomes, read_outcomes
from spool.wire import DEAD_LETTERED

_EVERYTHING = 1 << 62

Sequences = npt.NDArray[np.int64]


class Unadopted(NamedTuple):
    """What one look at the files shows."""

    files: dict[Path, OutcomeFile]
    """Those that can be believed."""
    refused: dict[Path, BadSpool]
    """The others, and why."""


def list_unadopted(layout: Layout) -> list[Path]:
    """The files that are there, by name."""
    return sorted(layout.outcomes.rglob(f"*{SUFFIX}"))


def count_unadopted(layout: Layout) -> int:
    """Messages that the files tell of, by their first bytes; what two of them tell of counts twice."""
    count = 0
    for path in list_unadopted(layout):
        with suppress(OSError):
            count += count_outcomes(path)
    return count


def read_unadopted(layout: Layout, spool: bytes) -> Unadopted:
    """Look at all files; `spool` is the uuid. What is not given to us, or gone, is in neither list."""
    files: dict[Path, OutcomeFile] = {}
    refused: dict[Path, BadSpool] = {}
    for path in list_unadopted(layout):
        try:
            files[path] = read_outcomes(path)
        except BadSpool as error:
            refused[path] = error
        except OSError:
            continue
    # Behind the files: whatever they speak of is in the log by now.
    judge = Judge(layout, spool, Catalogue(layout)) if files else None
    for path, file in list(files.items()):
        try:
            assert judge
            judge.judge(path, file)
        except BadSpool as error:
            del files[path]
            refused[path] = error
    return Unadopted(files, refused)


class Judge:
    """Tells whether a file can be about messages of a spool, by its catalogue, which others keep fresh."""

    def __init__(self, layout: Layout, spool: bytes, catalogue: Catalogue) -> None:
        self._layout, self._spool, self._catalogue = layout, spool, catalogue

    def judge(self, path: Path, file: OutcomeFile) -> None:
        """Raises BadSpool for what cannot be about messages of this spool."""
        if file.spool != self._spool:
            raise BadSpool(f"{path} is of the spool {file.spool.hex()}, and not of this one")
        if ((file.reasons < 0) | (file.reasons >= 2 * DEAD_LETTERED)).any():
            raise BadSpool(f"{path} gives reasons that this release does not know")
        if self._strays(file.sequences):
            raise BadSpool(f"{path} speaks of messages that were never stored")

    def _strays(self, sequences: Sequences) -> bool:
        """Whether one of these numbers, in ascending order, was not given to any message."""
        segments = self._catalogue.segments
        if not len(sequences) or not segments:
            return len(sequences) > 0
        firsts = np.array([info.first_sequence for info in segments])
        ends = firsts + np.array([self._catalogue.most(info) for info in segments])
        if sequences[-1] >= firsts[-1]:
            ends[-1] = self.end(int(sequences[-1]))
        at = np.searchsorted(firsts, sequences, side="right") - 1
        # What lies before the first segment was resolved, and has gone.
        return bool(sequences[0] < 0 or ((at >= 0) & (sequences >= ends[at])).any())

    def end(self, sequence: int = _EVERYTHING) -> int:
        """Behind the last message of the log; where the index knows of `sequence`, what that says."""
        if not self._catalogue.segments:
            return 0
        last = self._catalogue.segments[-1]
        committed = read_committed(self._layout.index)
        if committed and committed[0] == last.number and int(committed[1][SEQUENCE]) > sequence:
            return int(committed[1][SEQUENCE])
        return self._catalogue.end_of(last)
