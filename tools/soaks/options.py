"""How long and how hard a soak is. The defaults are the proof's; the tests run `--minutes 1`."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tools.bruce_process import ROOT
from tools.storms.options import StormOptions


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """Every number of a soak."""

    dir: Path = ROOT / ".cache/soak"
    seed: int = 0
    minutes: int = 45
    rate: int = 2000
    """Datagrams a second, of all senders together."""
    sending_s: int = 45
    """Of each minute; in the rest of it the messages are counted."""
    disk_mib: int = 48
    """Size of the spool's filesystem."""
    room_mib: int = 8
    """`max_bytes` of the spool."""
    brokers: int = 3
    embedded: bool = False
    keep: bool = False
    """Keep Kafka's data also after a run without faults."""

    def storm(self) -> StormOptions:
        """The options that storm and soak share. Segments of 1 MiB, so that each minute has rolls."""
        return StormOptions(
            dir=self.dir,
            seed=self.seed,
            embedded=self.embedded,
            brokers=self.brokers,
            messages=self.minutes * self.sending_s * self.rate,
            segment_mib=1,
            room_mib=self.room_mib,
            keep=self.keep,
        )


def parse_options(arguments: Sequence[str] | None, description: str) -> SoakOptions:
    """The command line; a seed of its own, when none is given."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for option in fields(SoakOptions):
        name = "--" + option.name.replace("_", "-")
        if isinstance(option.default, bool):
            parser.add_argument(name, action="store_true")
        else:
            parser.add_argument(name, type=type(option.default), default=option.default)
    given = vars(parser.parse_args(arguments))
    given["seed"] = given["seed"] or secrets.randbelow(1 << 31) + 1
    return SoakOptions(**given)
