"""A standalone Spark cluster on this host, a master and two workers, and jobs whose executors it runs.

Each worker has one core, and an address of its own: Spark makes no copy of a task on the host that runs it.
Every process dies with the one that started it: master and workers by a signal, executors with their worker.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import psutil

from tests.daemon import ROOT, alive
from tools.class_data import spark_options
from tools.fleets.jobs import BRUCECTL, is_executor
from tools.waiting import wait_until

HOSTS = ("127.0.0.1", "127.0.0.2")
PATIENCE_S = 300.0
"""For JVMs that start, on a machine that has other work: a timeout, not a delay."""
LOOK_S = 0.2
JOBS = (*BRUCECTL, "spark")

COPIES = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1",
    "spark.speculation.interval": "100ms",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
}
"""A copy of each task that takes longer than half of its stage."""


class Attempt(NamedTuple):
    """At a task; all as Spark writes them."""

    stage: str
    task: str
    number: str


class Executor:
    """The JVM of an executor, and the Python workers below it."""

    def __init__(self, process: psutil.Process) -> None:
        self._process, self._log = process, Path(process.cwd()) / "stderr"
        self.pid: int = process.pid

    def loaded(self, ports: Collection[int]) -> set[Path]:
        """The libraries of Python packages that those have in memory which are connected to one of these."""
        maps = [Path(found.path) for worker in self.senders(ports) for found in worker.memory_maps()]
        return {path for path in maps if "site-packages" in path.parts}

    @property
    def is_registered(self) -> bool:
        """Whether its driver gives it tasks."""
        return self.logged("Successfully registered with driver") > 0

    def logged(self, words: str) -> int:
        """How many lines of its log have these words, a regular expression."""
        return len(re.findall(words, self._read()))

    def _read(self) -> str:
        # At first there is no log.
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def last_attempt(self) -> Attempt | None:
        """The task attempt that it was given last."""
        given = re.findall(r"Running task (\d+)\.(\d+) in stage (\S+)", self._read())
        return Attempt(given[-1][2], given[-1][0], given[-1][1]) if given else None

    def senders(self, ports: Collection[int]) -> list[psutil.Process]:
        """Its Python workers that are connected to one of these."""
        return [worker for worker in _below(self._process) if not _peers(worker).isdisjoint(ports)]

    def sends_to(self, ports: Collection[int]) -> bool:
        """Whether one of its Python workers is connected to one of these."""
        return bool(self.senders(ports))

    def freeze(self) -> None:
        """It stops, and Spark does not notice for minutes."""
        self._process.suspend()

    def thaw(self) -> None:
        """It goes on."""
        self._process.resume()

    def kill(self) -> None:
        """SIGKILL; returns when its Python workers are gone, too, which end by themselves."""
        family = [self._process, *_below(self._process)]
        self._process.kill()
        wait_until(
            lambda: not any(map(alive, family)), PATIENCE_S, "an executor's workers to end", pause_s=LOOK_S
        )


class StandaloneCluster:
    """The cluster. A context manager, which leaves no process behind."""

    def __init__(self, directory: Path) -> None:
        """Start it; its logs, and the executors' output, go to `directory`."""
        self.directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._start("master", HOSTS[0], "master.Master")
            self.master = self._await("master", r"Starting Spark master at (spark://\S+)")
            for host in HOSTS:
                work = ["--work-dir", str(directory / host), "--cores", "1", "--memory", "1g"]
                self._start(host, host, "worker.Worker", *work, self.master)
            for host in HOSTS:
                self._await(host, r"Successfully registered with master (\S+)")
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, host: str, role: str, *arguments: str) -> None:
        from pyspark.find_spark_home import _find_spark_home

        mortal = ["setpriv", "--pdeathsig", "KILL"]
        program = [Path(_find_spark_home()) / "bin" / "spark-class", f"org.apache.spark.deploy.{role}"]
        environ = {
            **os.environ,
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": spark_options(),
        }
        with (self.directory / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*mortal, *program, "--host", host, "--port", "0", "--webui-port", "0", *arguments],
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _await(self, name: str, said: str) -> str:
        """Wait until the log of one of them matches; the match."""
        log, found = self.directory / f"{name}.log", list[str]()

        def look() -> bool:
            text = log.read_text(errors="replace")
            assert all(process.poll() is None for process in self._processes), text
            found[:] = re.findall(said, text)
            return bool(found)

        wait_until(look, PATIENCE_S, f"the {name} to start", pause_s=LOOK_S)
        return found[0]

    def executors(self) -> list[Executor]:
        """The executors that live and have begun, of any job."""
        found = []
        for process in self._jvms():
            with suppress(psutil.NoSuchProcess, FileNotFoundError):
                found.append(Executor(process))
        return found

    def await_executors(self, count: int, such: Callable[[Executor], bool]) -> list[Executor]:
        """So many executors that are so, once there are."""
        found: list[Executor] = []

        def look() -> bool:
            with suppress(psutil.NoSuchProcess, FileNotFoundError):
                found[:] = filter(such, self.executors())
            return len(found) >= count

        wait_until(look, PATIENCE_S, f"{count} executors", pause_s=LOOK_S)
        return found

    def copied(self) -> tuple[str, str] | None:
        """The stage and task that both executors work at; None: each has its own."""
        match [executor.last_attempt() for executor in self.executors()]:
            case [Attempt(stage, task, one), Attempt(same_stage, same_task, other)]:
                return (stage, task) if (stage, task) == (same_stage, same_task) and one != other else None
        return None

    def await_idle(self) -> None:
        """Wait until no job has executors any more."""
        wait_until(lambda: not self._jvms(), PATIENCE_S, "executors to end", pause_s=LOOK_S)

    def job(
        self,
        *arguments: object,
        environ: Mapping[str, str],
        conf: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        program: Sequence[str] = JOBS,
    ) -> ClusterJob:
        """`brucectl spark` with these arguments; it has the cluster to itself, and begins with all of it.

        `program`: another one, which takes --master and --conf, too.
        """
        self.await_idle()
        return ClusterJob(self, [*program, *map(str, arguments)], conf or {}, environ, cwd)

    def _jvms(self) -> list[psutil.Process]:
        below = [child for process in self._processes for child in _below(psutil.Process(process.pid))]
        return [process for process in below if alive(process) and is_executor(process)]

    def close(self) -> None:
        """End everything, and wait for that."""
        below = [one for process in self._processes for one in _below(psutil.Process(process.pid))]
        for process in self._processes:
            process.kill()
            process.wait()
        for one in below:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(below, timeout=PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def _peers(process: psutil.Process) -> set[int]:
    """The ports that a process is connected to."""
    with suppress(psutil.NoSuchProcess):
        return {found.raddr.port for found in process.net_connections() if found.raddr}
    return set()


class ClusterJob:
    """A job's driver, a process of its own. A context manager: it does not outlive a test that fails."""

    def __init__(
        self,
        cluster: StandaloneCluster,
        command: Iterable[str],
        conf: Mapping[str, str],
        environ: Mapping[str, str],
        cwd: Path,
    ) -> None:
        """Start it; its output goes to a file, which need not be read for it to go on."""
        said = {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": spark_options(),
            # A slow or stopped process is not dead.
            "spark.network.timeout": "1h",
            # Without these it begins with the first executor that is there.
            "spark.cores.max": str(len(HOSTS)),
            "spark.scheduler.minRegisteredResourcesRatio": "1",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE_S:.0f}s",
            **conf,
        }
        options = [word for key, value in said.items() for word in ("--conf", f"{key}={value}")]
        self._log = cluster.directory / "job.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--master", cluster.master, *options],
                cwd=cwd,
                env={**environ, "SPARK_LOCAL_IP": HOSTS[0]},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def result(self) -> str:
        """Its output; it must end with 0."""
        said, _ = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0, self._log.read_text()
        return said

    def kill(self) -> None:
        """SIGKILL the driver, its Python and its JVM."""
        for process in [psutil.Process(self._process.pid), *_below(psutil.Process(self._process.pid))]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.communicate(timeout=PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.runs:
            self.kill()
