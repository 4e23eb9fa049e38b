"""What can go wrong in a job on Spark.

    PipelineError
      MissingSpark       no pyspark, one that is too old, no Java, or a JVM that does not start
      BadSchema          a column that a source does not have
      BadOption          an option of a source with a value that it cannot have
      NotLent            delivery could not be had: its owner does not answer
      LeaseLost          delivery was taken back from a job that had it
      BadQuery           SQL that says nothing Spark could do
      JobFailed          a job that began and could not end: a topic lost on the way
        SegmentGone      of a job that reads: a segment was removed meanwhile

What Kafka refuses is said by the errors of dispatch. Each message is one sentence for the terminal;
`cli.exits` says which exit code goes with it.
"""

from __future__ import annotations


class PipelineError(Exception):
    """Anything that keeps a job from its result."""


class MissingSpark(PipelineError):
    """Spark cannot run here."""


class BadSchema(PipelineError):
    """A column that a source does not have."""


class BadOption(PipelineError):
    """An option of a source with a value that it cannot have."""


class NotLent(PipelineError):
    """Whoever owns the marks of a spool does not lend delivery."""


class LeaseLost(PipelineError):
    """Delivery was taken back: others send what is not recorded."""


class BadQuery(PipelineError):
    """SQL that says nothing Spark could do."""


class JobFailed(PipelineError):
    """A job that began and could not end."""


class SegmentGone(JobFailed):
    """A segment that was planned to be read is not there any more."""
