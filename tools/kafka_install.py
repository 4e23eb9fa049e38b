"""What real Kafka needs on this machine: java, and jars that Maven fetches once.

    .cache/kafka/VERSION/*.jar       the broker and its runtime dependencies
    .cache/kafka/VERSION/complete    the digest of the pom that they were fetched for
    .cache/kafka/fetch.log, .lock    Maven's words; held while Maven runs

Which jars is said in tools/kafka_jars/pom.xml alone.

    KafkaError        one sentence for whoever asked
      KafkaMissing    java, Maven or the jars are not to be had
"""

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

VERSION = "4.4.0"

_ROOT = Path(__file__).resolve().parent.parent
_POM = _ROOT / "tools/kafka_jars/pom.xml"
LOG4J = _ROOT / "tools/kafka_jars/log4j2.properties"
CACHE = _ROOT / ".cache/kafka"
JARS = CACHE / VERSION


class KafkaError(Exception):
    """What was asked of the brokers did not happen; the message says why."""


class KafkaMissing(KafkaError):
    """This machine has no real Kafka: no java, no Maven, or jars that cannot be fetched."""


def find_program(name: str) -> str:
    """The path of a program that must be installed."""
    path = shutil.which(name)
    if path is None:
        raise KafkaMissing(f"{name} is not installed")
    return path


def jars_available() -> bool:
    """Whether the jars that the pom asks for now lie complete in JARS."""
    complete = JARS / "complete"
    return complete.exists() and complete.read_text() == _pom_digest()


def fetch_jars() -> Path:
    """The directory of jars, filled by Maven when not complete; waits for others who fetch."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "fetch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars_available():
            _run_maven()
            (JARS / "complete").write_text(_pom_digest())
    return JARS


def _pom_digest() -> str:
    return hashlib.sha256(_POM.read_bytes()).hexdigest()


def _run_maven() -> None:
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={JARS}"]
    command = [find_program("mvn"), "-B", "-f", str(_POM), *goal]
    # Jars of an earlier pom must not stay on the class path.
    shutil.rmtree(JARS, ignore_errors=True)
    log = CACHE / "fetch.log"
    with log.open("wb") as output:
        run = subprocess.run(command, stdout=output, stderr=output, check=False)
    if run.returncode:
        raise KafkaMissing(f"Maven could not fetch the jars of Kafka {VERSION}; see {log}")
