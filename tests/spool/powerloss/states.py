"""The states in which a power loss can leave a disk, made from a recording."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from tests.spool.powerloss.record import SECTOR, Event, Named, Sized, Stored

SECTORS_PER_PAGE = 8


@dataclass(slots=True)
class Disk:
    """Files and directories by inode."""

    files: dict[int, bytearray] = field(default_factory=dict)
    names: dict[int, dict[str, int]] = field(default_factory=dict)

    def apply(self, event: Event, chosen: frozenset[int] | None = None) -> None:
        """Apply an event to the disk; of stores, all sectors or the chosen ones."""
        if isinstance(event, Named):
            self._name(event.inode, event.names)
            if event.elsewhere:
                self._name(*event.elsewhere)
        elif isinstance(event, Sized):
            data = self.files.setdefault(event.inode, bytearray())
            del data[event.size :]
            data.extend(bytes(event.size - len(data)))
        elif isinstance(event, Stored):
            data = self.files.setdefault(event.inode, bytearray())
            for sector, content in event.sectors.items():
                if chosen is None or sector in chosen:
                    _store(data, sector * SECTOR, content)

    def _name(self, directory: int, names: dict[str, int | None]) -> None:
        here = self.names.setdefault(directory, {})
        for name, inode in names.items():
            if inode is None:
                here.pop(name, None)
            else:
                here[name] = inode

    def write(self, directory: int, path: Path, directories: set[int]) -> None:
        """Write it out as files."""
        path.mkdir(exist_ok=True)
        for name, inode in self.names.get(directory, {}).items():
            if inode in directories:
                self.write(inode, path / name, directories)
            else:
                (path / name).write_bytes(self.files.get(inode, b""))


def _store(data: bytearray, at: int, content: bytes) -> None:
    """Store within the size of a file: bytes behind it are not part of it."""
    part = content[: max(0, len(data) - at)]
    data[at : at + len(part)] = part


@dataclass(frozen=True, slots=True)
class Loss:
    """How much of the unsynced data is kept: the share of names, of stores, and in which units."""

    names: float
    stores: float
    unit: int
    """Sectors that are kept or lost together."""

    @classmethod
    def of(cls, chance: random.Random) -> Loss:
        """A random loss."""
        shares = (0.0, 0.1, 0.5, 0.9, 1.0)
        unit = chance.choice((1, SECTORS_PER_PAGE, 1 << 30))
        return cls(chance.choice(shares), chance.choice(shares), unit)

    def chosen(self, event: Stored, chance: random.Random) -> frozenset[int]:
        """The sectors of a store that are kept."""
        units = sorted({sector // self.unit for sector in event.sectors})
        kept = {unit for unit in units if chance.random() < self.stores}
        return frozenset(sector for sector in event.sectors if sector // self.unit in kept)


ALL, NOTHING = Loss(1.0, 1.0, 1), Loss(0.0, 0.0, 1)


def disk_after(events: list[Event], count: int, loss: Loss, chance: random.Random) -> Disk:
    """The content of the disk when power goes after `count` events."""
    disk = Disk()
    for event in events[:count]:
        if event.durable <= count:
            disk.apply(event)
        elif isinstance(event, Stored):
            disk.apply(event, loss.chosen(event, chance))
        elif chance.random() < loss.names:
            disk.apply(event)
    return disk
