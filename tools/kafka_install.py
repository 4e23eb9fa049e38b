"""The requirements of real Kafka: java, and jars that Maven fetches once into .cache/kafka/VERSION.

tools/kafka_jars/pom.xml alone names the jars.

    KafkaError        one sentence for the caller
      KafkaMissing    java, Maven or the jars are not available
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
    """A request to the brokers failed; the message says why."""


class KafkaMissing(KafkaError):
    """This machine has no real Kafka: no java, no Maven, or jars that cannot be fetched."""


def find_program(name: str) -> str:
    """The path of a program that must be installed."""
    path = shutil.which(name)
    if path is None:
        raise KafkaMissing(f"{name} is not installed")
    return path


def jars_available() -> bool:
    """Whether the cache has all jars of the present pom."""
    return _JARS.available


def jars_directory() -> Path | None:
    """The directory of those jars; None when they are not complete."""
    return _JARS.directory if _JARS.available else None


def fetch_jars() -> Path:
    """The directory of jars, filled by Maven when not complete; waits while another process fetches."""
    try:
        return _JARS.fetch()
    except JarsMissing as error:
        raise KafkaMissing(str(error)) from None
