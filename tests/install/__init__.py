"""Tests of what is installed: packages, units, containers."""
