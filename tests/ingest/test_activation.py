"""Sockets that a service manager hands over: each is told by what it is, and the wrong ones are named."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ingest.activation import activated_doors

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, os, sys
fds = [int(fd) for fd in sys.argv[2:]]
kept = [os.dup(fd) for fd in fds]
for number, fd in enumerate(kept):
    os.dup2(fd, 3 + number)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=sys.argv[1])
from ingest.activation import activated_doors
from ingest.errors import BadSocket
try:
    doors, ack = activated_doors()
except BadSocket as error:
    print(json.dumps(str(error)))
else:
    told = [[d.input.kind, str(d.input.place), os.get_inheritable(d.socket.fileno())] for d in doors]
    read = [d.socket.recv(20).decode() for d in doors if d.input.kind == "datagram"]
    print(json.dumps([told, read, ack and ack.getsockname()]))
"""


def hand_over(sockets: list[socket.socket], names: str = "") -> object:
    """What a process finds that gets these."""
    fds = [one.fileno() for one in sockets]
    # From 3 on there must be room for them.
    command = [sys.executable, "-c", PROGRAM, names, *map(str, fds)]
    done = subprocess.run(command, pass_fds=fds, cwd=ROOT, capture_output=True, check=True, timeout=60)
    return json.loads(done.stdout)


def unix(path: Path, kind: socket.SocketKind, *, listening: bool = True) -> socket.socket:
    """As systemd makes it."""
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(str(path))
    if kind == socket.SOCK_STREAM and listening:
        made.listen()
    return made


def tcp(host: str = "127.0.0.1") -> socket.socket:
    """The same."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.bind((host, 0))
    made.listen()
    return made


def test_without_a_service_manager_there_is_none() -> None:
    """Variables that are missing, or meant for another process, hand nothing over."""
    assert activated_doors({}) == ([], None)
    assert activated_doors({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) == ([], None)


def test_each_kind_is_told(memory: Path) -> None:
    """Datagrams, streams, TCP, by its name the socket for acknowledgements; what waits in them is there."""
    made = [
        unix(memory / "stream", socket.SOCK_STREAM),
        unix(memory / "one", socket.SOCK_DGRAM),
        unix(memory / "acked", socket.SOCK_DGRAM),
        tcp(),
        tcp("::1"),
        unix(memory / "two", socket.SOCK_DGRAM),
    ]
    for name in ("one", "two"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(f"for {name}".encode(), str(memory / name))
    told, read, ack = hand_over(made, "bruce:bruce:ack:bruce:bruce")  # type: ignore[misc]
    assert told == [
        ["stream", str(memory / "stream"), False],
        ["datagram", str(memory / "one"), False],
        ["tcp", str(made[3].getsockname()[1]), False],
        ["tcp", str(made[4].getsockname()[1]), False],
        ["datagram", str(memory / "two"), False],
    ]
    assert read == ["for one", "for two"]
    assert ack == str(memory / "acked")
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: tcp("0.0.0.0"), "other hosts reach"),
        (lambda path: unix(path / "s", socket.SOCK_STREAM, listening=False), "neither UNIX datagrams nor"),
        (lambda path: unix(path / "s", socket.SOCK_SEQPACKET), "neither UNIX datagrams nor"),
    ],
    ids=["to other hosts", "a connection", "of another kind"],
)
def test_what_can_be_no_input(memory: Path, make: Callable[[Path], socket.socket], said: str) -> None:
    """One sentence says what was handed over, and what to write in the unit."""
    made = make(memory)
    assert said in str(hand_over([made]))
    made.close()
