"""The contents of the filesystem: as they are, and as they would be after a power loss."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field

PAGE = 4096
ROOT = 1


@dataclass(slots=True)
class Node:
    """A file or a directory: now, and on the disk."""

    number: int
    mode: int
    content: bytearray = field(default_factory=bytearray)
    entries: dict[bytes, int] = field(default_factory=dict)
    disk: bytearray = field(default_factory=bytearray)
    disk_entries: dict[bytes, int] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)
    """Pages that the next sync writes. One that fails writes none, and leaves none."""

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    def write(self, data: bytes, offset: int) -> None:
        """Store into the file, growing it as needed."""
        self.content.extend(bytes(max(0, offset + len(data) - len(self.content))))
        self.content[offset : offset + len(data)] = data
        self.dirty.update(range(offset // PAGE, -(-(offset + len(data)) // PAGE)))

    def resize(self, size: int) -> None:
        """Cut the file, or make it longer by zeros."""
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))
        self.dirty.add(size // PAGE)

    def sync(self) -> None:
        """Put on the disk what is dirty, the size, and the names of a directory."""
        del self.disk[len(self.content) :]
        self.disk.extend(bytes(len(self.content) - len(self.disk)))
        for page in self.dirty:
            at = page * PAGE
            self.disk[at : at + PAGE] = self.content[at : at + PAGE]
        self.dirty.clear()
        self.disk_entries = dict(self.entries)

    def forget(self) -> None:
        """Be as on the disk."""
        self.content, self.entries = bytearray(self.disk), dict(self.disk_entries)
        self.dirty.clear()


class Store:
    """All nodes, by number."""

    def __init__(self) -> None:
        self.nodes = {ROOT: Node(ROOT, stat.S_IFDIR | 0o755)}
        self.room: int | None = None
        """Bytes that may be stored in all; None for no end."""

    def make(self, parent: Node, name: bytes, mode: int) -> Node:
        """A new file or directory. Raises OSError when there is one of that name."""
        if name in parent.entries:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        number = len(self.nodes) + 1
        node = self.nodes[number] = Node(number, mode)
        parent.entries[name] = number
        return node

    def find(self, parent: Node, name: bytes) -> Node:
        """The node of that name. Raises OSError without one."""
        if name not in parent.entries:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self.nodes[parent.entries[name]]

    def links(self, number: int) -> int:
        """How many names a node has."""
        return sum(list(node.entries.values()).count(number) for node in self.nodes.values())

    def take(self, node: Node, end: int) -> None:
        """Have room for a file that ends there. Raises OSError if there is none."""
        if self.room is None or end <= len(node.content):
            return
        if sum(len(n.content) for n in self.nodes.values()) + end - len(node.content) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def path(self, number: int) -> str:
        """Some name of a node, for a caller that chooses files by name."""
        for node in self.nodes.values():
            for name, other in node.entries.items():
                if other == number:
                    return os.fsdecode(name)
        return "/"

    def forget(self) -> None:
        """Power is lost."""
        for node in self.nodes.values():
            node.forget()
