"""The errors of jobs, on Spark and embedded.

    PipelineError
      MissingSpark       no pyspark, one that is too old, no Java, or a JVM that does not start
      MissingEngine      no DuckDB, or no pyarrow
      BadSchema          a column that a source does not have
      BadOption          an option of a source with a value that it cannot have
      NotLent            no lease of delivery: its owner does not answer
      NoWitness          no witness has run in a directory
      LeaseLost          delivery was taken back from a job that had it
      BadQuery           SQL that is wrong, or is no query
      JobFailed          a job that began and could not finish: a topic was lost on the way
        SegmentGone      a segment was removed while a job read the spool
        ArchiveConflict  another job, or program, committed to an archive first

Errors of Kafka are those of dispatch. Each message is one sentence for the terminal; `cli.terminal.errors`
maps each error to an exit code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spool.errors import MissingPart, NoSpool, SpoolError


class PipelineError(Exception):
    """The base of all errors of a job."""


class MissingSpark(PipelineError):
    """Spark cannot run here."""


class MissingEngine(PipelineError):
    """DuckDB cannot run here."""


class BadSchema(PipelineError):
    """A column that a source does not have."""


class BadOption(PipelineError):
    """An option of a source with a value that it cannot have."""


class NotLent(PipelineError):
    """The process that owns the marks of a spool does not lend delivery."""


class NoWitness(PipelineError):
    """No witness has run in this directory."""


class LeaseLost(PipelineError):
    """The daemon took delivery back: it sends every message that has no recorded outcome."""


class BadQuery(PipelineError):
    """SQL that is wrong, or is no query."""


class JobFailed(PipelineError):
    """A job that began and could not finish."""


class ArchiveConflict(JobFailed):
    """Another job, or program, committed to an archive first: nothing of this one is there."""


class SegmentGone(JobFailed):
    """A segment of the plan was removed before a task read it."""


@contextmanager
def finishing() -> Iterator[None]:
    """Raise JobFailed for a spool that cannot be read, such as a newer one: it says nothing of messages."""
    try:
        yield
    except (NoSpool, MissingPart):
        raise
    except SpoolError as error:
        raise JobFailed(str(error)) from error
