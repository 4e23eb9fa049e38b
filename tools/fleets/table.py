"""The figures of a run, a line each."""

from __future__ import annotations

from collections.abc import Callable


class Table:
    """Names and figures, in the order in which they were added."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add(self, name: str, value: float) -> None:
        """One figure."""
        self.values[name] = value

    def timed(self, name: str, messages: int, seconds: float) -> None:
        """Seconds, and messages a second."""
        self.values[f"{name}, s"] = round(seconds, 1)
        self.values[f"{name}, messages/s"] = round(messages / seconds)

    def show(self, say: Callable[[str], None]) -> None:
        """Print all of them."""
        width = max(map(len, self.values))
        for name, value in self.values.items():
            say(f"{name:<{width}}  {value:>14,}")
