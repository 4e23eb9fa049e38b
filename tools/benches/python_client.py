"""A client in Python: messages of 120 bytes, one by one or as `send_many` has them.

    python -m tools.benches.python_client SOCKET COUNT BATCH

With BATCH 1 there are no batches. Prints one JSON line: the seconds that it took.
"""

from __future__ import annotations

import json
import sys
import time

from bruce_client import Client, Message

VALUE = bytes(120)


def main() -> None:
    """Send what the command line says."""
    socket, count, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with Client(socket, timeout_s=60) as client:
        begun = time.monotonic()
        if batch == 1:
            for _ in range(count):
                client.send("load", VALUE)
        else:
            client.send_many(Message("load", VALUE) for _ in range(count))
        client.flush()
        seconds = time.monotonic() - begun
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
