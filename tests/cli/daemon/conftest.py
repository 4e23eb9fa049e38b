"""Spools whose delivery is lent."""

from tests.e2e.lease_run import lease_run

__all__ = ["lease_run"]
