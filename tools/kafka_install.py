"""What real Kafka needs on this machine: java, and jars that Maven fetches once into .cache/kafka/VERSION.

Which jars is said in tools/kafka_jars/pom.xml alone.

    KafkaError        one sentence for whoever asked
      KafkaMissing    java, Maven or the jars are not to be had
"""

import shutil
from pathlib import Path

from tools.maven_jars import JarsMissing, MavenJars

VERSION = "4.4.0"

_ROOT = Path(__file__).resolve().parent.parent
LOG4J = _ROOT / "tools/kafka_jars/log4j2.properties"
CACHE = _ROOT / ".cache/kafka"
_JARS = MavenJars(f"Kafka {VERSION}", _ROOT / "tools/kafka_jars/pom.xml", CACHE / VERSION)


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
    """Whether the jars that the pom asks for now lie complete in the cache."""
    return _JARS.available


def jars_directory() -> Path | None:
    """Where those jars lie; None when they are not complete."""
    return _JARS.directory if _JARS.available else None


def fetch_jars() -> Path:
    """The directory of jars, filled by Maven when not complete; waits for others who fetch."""
    try:
        return _JARS.fetch()
    except JarsMissing as error:
        raise KafkaMissing(str(error)) from None
