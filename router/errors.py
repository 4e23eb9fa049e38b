"""Errors of the router.

RouterError
  BadPartitioner   a partitioner's name is unknown, or its function cannot be loaded

"""

from __future__ import annotations


class RouterError(Exception):
    """Anything the router refuses."""


class BadPartitioner(RouterError):
    """A partitioner's name is unknown, or its function cannot be loaded."""
