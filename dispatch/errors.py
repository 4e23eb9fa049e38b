"""What can go wrong on the way to Kafka.

    DispatchError
      NoLibrary          librdkafka is not there, or of a version we have not tried
      BadProperty        a property that librdkafka, or our contract, refuses: key
      Unreachable        the cluster did not answer in time, or answered with an error: code
      EmbeddedFailed     the embedded Kafka did not start, or refused a command

A message that fails is no exception: its outcome carries Kafka's error code, and `dispatch.retry`
says what follows from it. Each text here is one sentence that says what, where and what to do.
"""

from __future__ import annotations


class DispatchError(Exception):
    """Anything dispatch refuses or cannot do."""


class NoLibrary(DispatchError):
    """librdkafka is missing, or of a version we have not tried."""


class BadProperty(DispatchError):
    """A Kafka property that cannot be used. `key` is the property's name."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key


class Unreachable(DispatchError):
    """The cluster's metadata could not be fetched. `code` is Kafka's error code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class EmbeddedFailed(DispatchError):
    """The embedded Kafka did not start, or refused a command."""
