"""`brucectl trace`: what happens to single messages."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Annotated, Any

import typer

from cli.commands.arguments import AsJson, ConfigFile, SpoolDirectory, configured_spool, examples, file_errors

EXAMPLES = examples(
    "brucectl trace --topic orders",
    "brucectl trace --topic orders --key customer-4711 --for 10m",
    "brucectl trace --key customer-4711 --json | jq -r 'select(.event == \"acknowledged\") | .after_ms'",
    "brucectl trace --stop",
)
_OWN = ("time", "event", "sequence")


def trace(
    *,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="T", help="Messages of this topic; repeatable.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="K", help="Messages with this Kafka key.")
    ] = None,
    length: Annotated[
        str, typer.Option("--for", metavar="TIME", help="End after this time: 30s, 10m, 1h at most.")
    ] = "1m",
    size: Annotated[
        str, typer.Option("--bytes", metavar="SIZE", help="End after this size of events; 16MiB at most.")
    ] = "1MiB",
    payload: Annotated[bool, typer.Option("--payload", help="Show keys and values, too.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the trace that is running.")] = False,
    as_json: AsJson = False,
    spool: SpoolDirectory = None,
    config: ConfigFile = None,
) -> None:
    """Follow messages of a topic, or with a key, through the daemon, for a limited time.

    It prints each message as it is received, routed to a partition, sent to a broker, and acknowledged with
    its offset; or when it waits, fails and goes again, or is discarded. Messages that are in the spool
    already appear when they are routed. The trace ends by itself after --for, after --bytes, with Ctrl-C, and
    with the daemon; a delivery worker that is started again goes on with it. One runs at a time.

    Keys and values are not shown without --payload. A message that is not followed costs nothing: those that
    are meant are found by compiled code, and only while a trace runs.

    With --json one object a line: time, event, sequence, and with received topic, key_bytes, value_bytes,
    uid, pid (with --payload key, value and headers, in base64 under key_base64 and value_base64 where
    they are no UTF-8); with routed and waits partition; with sent partition, broker; with acknowledged
    partition, offset, after_ms; with failed partition, error; with discarded reason, dead_lettered.
    began, resumed and ended are of the trace itself; ended says why.
    """
    from cli.inspect.trace import Asking
    from cli.inspect.trace import stop as stop_trace
    from cli.terminal.output import complain

    directory = configured_spool(spool, config)
    with file_errors():
        if stop:
            if not stop_trace(directory):
                complain("no trace was running")
            return
        ask = _ask(topic or [], key, length, size, payload=payload)
        # The worker must learn of the end, whatever ends it.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with Asking(directory, ask) as asking:
            try:
                for event in asking.events():
                    _show(event, as_json=as_json)
            except KeyboardInterrupt:
                complain("stopped")


def _ask(topics: list[str], key: str | None, length: str, size: str, *, payload: bool) -> Any:
    from cli.config.kinds import parse_size
    from cli.inspect.records import parse_length
    from cli.terminal.errors import BadArgument
    from router.outcomes.trace_request import MOST_BYTES, TraceRequest
    from router.timing import LONGEST_TRACE_S

    if not topics and key is None:
        raise BadArgument("say which messages: --topic, --key, or both")
    try:
        seconds, most = parse_length("--for", length), parse_size(size)
    except ValueError as error:
        raise BadArgument(f"--bytes: {error}; write 65536 or 4MiB") from None
    if seconds > LONGEST_TRACE_S or not 0 < most <= MOST_BYTES:
        raise BadArgument("a trace lasts for an hour at most (--for), and takes 16MiB at most (--bytes)")
    until_ns = time.monotonic_ns() + int(1e9 * seconds)
    names = tuple(name.encode(errors="surrogateescape") for name in topics)
    return TraceRequest(
        names, None if key is None else key.encode(errors="surrogateescape"), until_ns, most, payload
    )


def _show(event: dict[str, Any], *, as_json: bool) -> None:
    from cli.terminal.output import say
    from spool.words import MOST_TOPIC, clipped

    if as_json:
        say(json.dumps(event, ensure_ascii=False))
    else:
        shown = [event["time"], f"{event['event']:<12}", str(event.get("sequence", "-"))]
        # As JSON: what comes from senders may hold anything.
        told = {name: value for name, value in event.items() if name not in _OWN}
        if "topic" in told:
            told["topic"] = clipped(told["topic"], MOST_TOPIC)
        shown += [f"{name}={json.dumps(value)}" for name, value in told.items()]
        say("  ".join(shown))
    sys.stdout.flush()
