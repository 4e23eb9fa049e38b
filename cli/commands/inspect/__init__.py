"""`brucectl inspect`: what is in a spool, or in segment files by themselves; and putting it in order.

Nothing is ever written, except by `repair --apply` and `reindex`.
"""

from __future__ import annotations

HELP = (
    "Look into a spool, or segment files by themselves. "
    "Nothing is written, except by reindex and by repair --apply."
)
