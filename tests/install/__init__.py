"""What is installed: packages, units, containers."""
