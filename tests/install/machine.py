"""A machine to install on: this host's files under a layer, in namespaces of its own, with a systemd.

All writes go into the layer, which can be looked at: `upper`. The host's own files, services, network and
processes are out of reach. Needs root, a Debian with the Python that packages are built for, and cgroups.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pytest

from tools.debian import PYTHON

PATIENCE_S = 600.0
"""For what takes moments, on a machine that has other work."""
CGROUPS = Path("/sys/fs/cgroup")
NAMESPACES = ("--pid", "--mount", "--cgroup", "--uts", "--ipc", "--net")
ENVIRON = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
PREPARE = """
set -e
cd "$1"
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
cd root
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
mkdir sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd systemd sys/fs/cgroup/systemd
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    : >dev/$device
    mount --bind /dev/$device dev/$device
done
ln -s /proc/self/fd dev/fd
ln -s pts/ptmx dev/ptmx
mkdir dev/shm dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
# What the host starts is not for this one.
rm -rf etc/systemd/system usr/sbin/policy-rc.d
mkdir -p etc/systemd/system run/outside
ip link set lo up
mkdir old
pivot_root . old
umount -l old
rmdir old
# As systemd makes it outside of containers: a unit's credentials are mounted in another namespace.
mount --make-rshared /
exec env -i container=bruce PATH=/usr/sbin:/usr/bin:/sbin:/bin "$2" $3
"""


class Machine:
    """One machine. As a context manager it starts, and leaves nothing at its end."""

    def __init__(self, *, systemd: bool) -> None:
        """`systemd`: that, as process 1; else nothing runs."""
        self._place = Path(tempfile.mkdtemp(prefix="bruce-machine-", dir="/dev/shm"))
        self._groups = [hierarchy / self._place.name for hierarchy in hierarchies()]
        self._first = ("/lib/systemd/systemd", "--unit=sysinit.target") if systemd else ("/bin/sleep", "3600")
        self._systemd = systemd
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def upper(self) -> Path:
        """The files that differ from the host's."""
        return self._place / "upper"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        for name in ("upper", "work", "root"):
            (self._place / name).mkdir()
        for group in self._groups:
            group.mkdir()
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (group / name).exists():
                    # Without any it takes no process.
                    (group / name).write_text((group.parent / name).read_text())
        # In a group of each hierarchy: what the machine's systemd takes for the roots are these.
        enter = "".join(f"echo $$ >{group}/cgroup.procs; " for group in self._groups) + 'exec "$@"'
        unshare = ["unshare", *NAMESPACES, "--fork", "--kill-child", "sh", "-c", PREPARE, "sh"]
        with (self._place / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", enter, "sh", *unshare, str(self._place), *self._first],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.await_true(self._has_begun)
        if self._systemd:
            self.await_true(lambda: self.tell("systemctl", "is-system-running") in ("running", "degraded"))

    def _has_begun(self) -> bool:
        assert self._process
        assert self._process.poll() is None, (self._place / "log").read_text()
        children = psutil.Process(self._process.pid).children()
        self._pid = children[0].pid if children else 0
        # In the midst of execve a process has no command line.
        return bool(children) and children[0].cmdline()[:1] == [self._first[0]]

    def command(self, *command: object) -> list[str]:
        """The command line that runs this on the machine."""
        assert self._pid
        return ["nsenter", "--target", str(self._pid), "--all", "env", "--chdir=/", *map(str, command)]

    def try_(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        return subprocess.run(
            self.command(*command),
            env=ENVIRON,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def tell(self, *command: object) -> str:
        """A program's output, however it ends."""
        return self.try_(*command).stdout.strip()

    def run(self, *command: object) -> str:
        """The output of a program that must succeed."""
        done = self.try_(*command)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def bring(self, file: Path, to: str) -> None:
        """Copy a file there."""
        with file.open("rb") as source:
            subprocess.run(
                self.command("sh", "-c", f"cat >{to}"),
                stdin=source,
                env=ENVIRON,
                check=True,
                timeout=PATIENCE_S,
            )

    def write(self, path: str, text: str) -> None:
        """Make a file there."""
        subprocess.run(
            self.command("sh", "-c", f"mkdir -p $(dirname {path}); cat >{path}"),
            input=text.encode(),
            env=ENVIRON,
            check=True,
            timeout=PATIENCE_S,
        )

    def show(self, unit: str, *properties: str) -> list[str]:
        """Properties of a unit, as systemctl has them."""
        told = self.run("systemctl", "show", unit, *(f"--property={name}" for name in properties))
        found = dict(line.split("=", 1) for line in told.splitlines())
        return [found[name] for name in properties]

    def await_true(self, condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
        """Ask until it is so; fail when it takes too long."""
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.05)

    def close(self) -> None:
        """End everything on it, and give the memory back."""
        if self._process:
            self._process.kill()
            self._process.wait(PATIENCE_S)
        for group in self._groups:
            # A killed process is in its group until the kernel has let go of it.
            self.await_true(lambda group=group: is_removed(group))
        shutil.rmtree(self._place)


def is_removed(group: Path) -> bool:
    """Whether a control group, with all below it, is gone; else it must have no process the next time."""
    try:
        for folder in [*sorted(group.rglob("*/"), reverse=True), group]:
            if folder.is_dir():
                folder.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def hierarchies() -> list[Path]:
    """The control group hierarchies of the host, in the way of cgroups(7), version 1 or both."""
    return [folder for folder in CGROUPS.iterdir() if (folder / "cgroup.procs").exists()]


def demand() -> None:
    """Skip the test where no such machine can be made."""
    if os.geteuid() != 0:
        pytest.skip("a machine to install on: mounting needs root")
    if not (CGROUPS / "systemd/cgroup.procs").exists():
        pytest.skip(f"a machine to install on: there is no {CGROUPS}/systemd")
    for program in ("dpkg-deb", "unshare", "nsenter", "ip", "systemctl", "userdel"):
        if not shutil.which(program):
            pytest.skip(f"a machine to install on: there is no {program}")
    if not Path("/usr/bin", PYTHON).exists():
        pytest.skip(f"a machine to install on: Debian's {PYTHON} is not there")
    if sys.platform != "linux":
        pytest.skip("a machine to install on: Linux")
