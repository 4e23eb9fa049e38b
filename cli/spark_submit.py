"""What `spark-submit` starts, which wants a file: `brucectl spark` with the arguments behind it."""

from __future__ import annotations

import sys

from cli.app import brucectl

if __name__ == "__main__":
    # The folder of this file stands first in the path, where its modules would hide others of their names.
    sys.path.pop(0)
    sys.argv[1:1] = ["spark"]
    brucectl()
