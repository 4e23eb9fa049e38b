"""The process that serves one mount: requests from /dev/fuse, orders as JSON lines from its standard input.

    {"do": "mount", "at": PATH}              mount what there is
    {"do": "cut"}                            power goes: what was not synced is forgotten, and everything
                                             from here on is an I/O error, until it is mounted again
    {"do": "fail", "opcode": NAME, "name": ENDING, "errno": n, "times": n, "first": n, "end": n}
                                             a READ fails when it touches bytes [first, end) of the file
    {"do": "heal"}                           nothing fails any more
    {"do": "room", "bytes": n}               null for no end

Each order is answered by one line. In a process of its own: a store into a mapping waits for an answer
with the interpreter's lock held.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator

from tests.forgetful import protocol as p
from tests.forgetful.protocol import Opcode
from tests.forgetful.store import ROOT, Node, Store

_libc = ctypes.CDLL(None, use_errno=True)


class Server:
    """One filesystem, mounted or not."""

    def __init__(self) -> None:
        self.store, self.device, self.dead = Store(), -1, False
        self.failures: list[dict[str, object]] = []
        self._answers: dict[Opcode, Callable[[Node, bytes], bytes]] = {
            Opcode.INIT: self._init,
            Opcode.LOOKUP: lambda node, data: self._entry(self.store.find(node, p.names(data)[0])),
            Opcode.GETATTR: lambda node, _: self._attributes(node),
            Opcode.SETATTR: self._set,
            Opcode.MKDIR: self._mkdir,
            Opcode.CREATE: self._create,
            Opcode.UNLINK: self._unlink,
            Opcode.RMDIR: self._unlink,
            Opcode.RENAME: lambda node, data: self._rename(node, data, p.RENAME.size),
            Opcode.RENAME2: lambda node, data: self._rename(node, data, p.RENAME2.size),
            Opcode.LINK: self._link,
            Opcode.OPEN: self._open,
            Opcode.OPENDIR: lambda *_: p.OPENED.pack(0, 0, 0),
            Opcode.READ: self._read,
            Opcode.WRITE: self._write,
            Opcode.READDIR: self._readdir,
            Opcode.STATFS: lambda *_: p.STATFS.pack(
                1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096, 0
            ),
            Opcode.FSYNC: self._sync,
            Opcode.FSYNCDIR: self._sync,
            Opcode.FALLOCATE: self._allocate,
            **dict.fromkeys(
                (Opcode.FLUSH, Opcode.RELEASE, Opcode.RELEASEDIR, Opcode.ACCESS, Opcode.DESTROY),
                lambda *_: b"",
            ),
        }

    def run(self) -> None:
        """Serve until standard input ends."""
        while True:
            fds = [0] + ([self.device] if self.device >= 0 else [])
            ready, _, _ = select.select(fds, [], [])
            if self.device in ready:
                self._serve()
            if 0 in ready:
                line = sys.stdin.buffer.raw.readline()  # type: ignore[attr-defined]
                if not line:
                    return
                self._obey(json.loads(line))
                os.write(1, b"done\n")

    def _obey(self, order: dict[str, object]) -> None:
        if order["do"] == "mount":
            self._mount(str(order["at"]))
        elif order["do"] == "cut":
            self.store.forget()
            self.dead = True
        elif order["do"] == "fail":
            self.failures.append(order)
        elif order["do"] == "heal":
            self.failures.clear()
        elif order["do"] == "room":
            self.store.room = order["bytes"]  # type: ignore[assignment]

    def _mount(self, place: str) -> None:
        if self.device >= 0:
            os.close(self.device)
        self.device, self.dead = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC), False
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other"
        if _libc.mount(b"forgetful", place.encode(), b"fuse.forgetful", 0, options.encode()):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def _serve(self) -> None:
        try:
            request = os.read(self.device, p.MOST_WRITTEN + 4096)
        except OSError as error:
            if error.errno == errno.ENODEV:
                os.close(self.device)
                self.device = -1
            return
        _, number, unique, inode, *_ = p.HEADER.unpack_from(request)
        if number in p.UNANSWERED:
            return
        code, data = 0, b""
        try:
            data = self._answer(number, inode, request[p.HEADER.size :])
        except OSError as error:
            code = error.errno or errno.EIO
        answer = p.ANSWER.pack(p.ANSWER.size + len(data), -code, unique) + data
        try:
            os.write(self.device, answer)
        except OSError as error:
            # The process that asked does not wait any more.
            if error.errno != errno.ENOENT:
                raise

    def _answer(self, number: int, inode: int, data: bytes) -> bytes:
        if number not in self._answers:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        opcode = Opcode(number)
        if self.dead and opcode is not Opcode.INIT:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        node = self.store.nodes.get(inode, self.store.nodes[ROOT])
        self._fail(opcode, node, data)
        return self._answers[opcode](node, data)

    def _chosen(self, opcode: Opcode, node: Node) -> Iterator[dict[str, object]]:
        """The failures that are meant for requests of this kind, for this file."""
        for order in self.failures:
            name = self.store.path(node.number)
            if order["times"] and order["opcode"] == opcode.name and name.endswith(str(order["name"])):
                yield order

    def _fail(self, opcode: Opcode, node: Node, data: bytes) -> None:
        """Refuse what is to fail. A sync that fails leaves nothing to be written by the next one."""
        for order in self._chosen(opcode, node):
            _, offset, size, *_ = p.READ.unpack_from(data) if opcode is Opcode.READ else (0, 0, 1)
            times, first, end = (int(str(order[key])) for key in ("times", "first", "end"))
            if offset < end and offset + size > first:
                order["times"] = times - 1
                if opcode is Opcode.FSYNC:
                    node.dirty.clear()
                code = int(str(order["errno"]))
                raise OSError(code, os.strerror(code))

    def _init(self, _node: Node, _data: bytes) -> bytes:
        pages = p.MOST_WRITTEN // 4096
        return p.INIT_ANSWER.pack(
            p.MAJOR, p.MINOR, p.MOST_WRITTEN, p.BIG_WRITES, 16, 12, p.MOST_WRITTEN, 1, pages, 0, 0
        )

    def _raw_attributes(self, node: Node) -> bytes:
        size, now = len(node.content), int(time.time())
        links = 2 if node.is_directory else self.store.links(node.number)
        return p.ATTRIBUTES.pack(
            node.number, size, -(-size // 512), now, now, now, 0, 0, 0, node.mode, links, 0, 0, 0, 4096, 0
        )

    def _attributes(self, node: Node) -> bytes:
        return p.ATTRIBUTES_VALID.pack(0, 0, 0) + self._raw_attributes(node)

    def _entry(self, node: Node) -> bytes:
        return p.ENTRY.pack(node.number, 0, 0, 0, 0, 0) + self._raw_attributes(node)

    def _set(self, node: Node, data: bytes) -> bytes:
        valid, _, _, size, *rest = p.SETATTR.unpack_from(data)
        if valid & p.SIZE_VALID:
            self.store.take(node, size)
            node.resize(size)
        if valid & p.MODE_VALID:
            node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(rest[7])
        return self._attributes(node)

    def _mkdir(self, node: Node, data: bytes) -> bytes:
        mode, mask = p.MKDIR.unpack_from(data)
        (name,) = p.names(data[p.MKDIR.size :])
        return self._entry(self.store.make(node, name, stat.S_IFDIR | mode & ~mask & 0o7777))

    def _create(self, node: Node, data: bytes) -> bytes:
        _, mode, mask, _ = p.CREATE.unpack_from(data)
        (name,) = p.names(data[p.CREATE.size :])
        made = self.store.make(node, name, stat.S_IFREG | mode & ~mask & 0o7777)
        return self._entry(made) + p.OPENED.pack(0, p.KEEP_CACHE, 0)

    def _unlink(self, node: Node, data: bytes) -> bytes:
        (name,) = p.names(data)
        if self.store.find(node, name).entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        del node.entries[name]
        return b""

    def _rename(self, node: Node, data: bytes, fields: int) -> bytes:
        target = self.store.nodes[p.RENAME.unpack_from(data)[0]]
        old, new = p.names(data[fields:])
        number = self.store.find(node, old).number
        del node.entries[old]
        target.entries[new] = number
        return b""

    def _link(self, node: Node, data: bytes) -> bytes:
        linked = self.store.nodes[p.LINK.unpack_from(data)[0]]
        node.entries[p.names(data[p.LINK.size :])[0]] = linked.number
        return self._entry(linked)

    def _open(self, node: Node, _data: bytes) -> bytes:
        """The kernel's cached pages of a file that is to fail are dropped, or it would not ask."""
        return p.OPENED.pack(0, 0 if any(self._chosen(Opcode.READ, node)) else p.KEEP_CACHE, 0)

    def _read(self, node: Node, data: bytes) -> bytes:
        _, offset, size, *_ = p.READ.unpack_from(data)
        return bytes(node.content[offset : offset + size])

    def _write(self, node: Node, data: bytes) -> bytes:
        _, offset, size, *_ = p.READ.unpack_from(data)
        self.store.take(node, offset + size)
        node.write(data[p.READ.size : p.READ.size + size], offset)
        return p.WRITTEN.pack(size, 0)

    def _readdir(self, node: Node, data: bytes) -> bytes:
        _, offset, size, *_ = p.READ.unpack_from(data)
        found = b""
        entries = [(b".", node.number), (b"..", ROOT), *node.entries.items()]
        for at, (name, number) in enumerate(entries[offset:], offset + 1):
            entry = p.dirent(number, at, name, self.store.nodes[number].mode >> 12)
            if len(found) + len(entry) > size:
                break
            found += entry
        return found

    def _sync(self, node: Node, _data: bytes) -> bytes:
        node.sync()
        return b""

    def _allocate(self, node: Node, data: bytes) -> bytes:
        _, offset, length, mode, _ = p.FALLOCATE.unpack_from(data)
        if mode:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        self.store.take(node, offset + length)
        if offset + length > len(node.content):
            node.resize(offset + length)
        return b""


if __name__ == "__main__":
    Server().run()
