"""The file that `spark-submit` starts: `brucectl spark` with the arguments behind it."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Python puts the folder of this file first in the path, where `inspect` and `status` would hide others of
    # their names.
    sys.path.pop(0)
    from cli.app import brucectl

    sys.argv[1:1] = ["spark"]
    brucectl()
