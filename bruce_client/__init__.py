"""Hand messages to the bruce daemon on this host.

    from bruce_client import Client

    with Client("/run/bruce/bruce.sock") as client:
        client.send("orders", "hello", key="customer-7")

It needs Python and nothing else.
"""

from bruce_client.client import Client
from bruce_client.errors import (
    BadMessage,
    ClientError,
    NobodyListens,
    NotPermitted,
    QueueFull,
    TooLarge,
    Unconfirmed,
)
from bruce_client.log_handler import BruceHandler
from bruce_client.message import Message, encode

__all__ = [
    "BadMessage",
    "BruceHandler",
    "Client",
    "ClientError",
    "Message",
    "NobodyListens",
    "NotPermitted",
    "QueueFull",
    "TooLarge",
    "Unconfirmed",
    "encode",
]
