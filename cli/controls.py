"""Characters that end a line or command a terminal, and what is shown in their stead."""

from __future__ import annotations

CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    ord("\t"): "\\t",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
}
"""For str.translate."""
