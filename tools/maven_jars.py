"""The jars of a pom, which Maven fetches once, with its ordinary settings.

DIRECTORY/*.jar                  the jars of the pom, and those that they need
DIRECTORY/complete               the digest of the pom that they were fetched for
DIRECTORY/../fetch.log, .lock    Maven's output; held while Maven runs
"""

import fcntl
import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


class JarsMissing(Exception):
    """Maven is not here, or cannot fetch them; the message says which."""


@dataclass(frozen=True)
class MavenJars:
    """The jars of one pom."""

    what: str
    """Their name in messages."""
    pom: Path
    directory: Path

    @property
    def available(self) -> bool:
        """Whether the directory has all jars of the present pom."""
        complete = self.directory / "complete"
        return complete.exists() and complete.read_text() == self._digest()

    def fetch(self) -> Path:
        """The directory, filled by Maven if incomplete; waits for another fetch. Raises JarsMissing."""
        cache = self.directory.parent
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "fetch.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.available:
                self._run_maven()
                (self.directory / "complete").write_text(self._digest())
        return self.directory

    def _digest(self) -> str:
        return hashlib.sha256(self.pom.read_bytes()).hexdigest()

    def _run_maven(self) -> None:
        maven = shutil.which("mvn")
        if maven is None:
            raise JarsMissing("mvn is not installed")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={self.directory}"]
        # Jars of an earlier pom must not stay on the class path.
        shutil.rmtree(self.directory, ignore_errors=True)
        log = self.directory.parent / "fetch.log"
        with log.open("wb") as output:
            run = subprocess.run(
                [maven, "-B", "-f", str(self.pom), *goal], stdout=output, stderr=output, check=False
            )
        if run.returncode:
            raise JarsMissing(f"Maven could not fetch the jars of {self.what}; see {log}")
