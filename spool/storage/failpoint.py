"""Named places where a test can kill a process, for the tests of recovery.

    BRUCE_CRASH_POINTS=FILE     one name a line

A process that reaches the place named in the first line strikes the line off and dies by SIGKILL. Then the
next line counts, for the next process that reaches its place. Without the variable `reach` is one comparison.

Compiled loops have no points: they cannot call Python. Their tests replace the functions that they call by
address instead; with the variable the keeper's loop commits nothing.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

ARMED = os.environ.get("BRUCE_CRASH_POINTS", "")

POINTS = {
    "allocate.synced": "a new file is whole and durable, under its temporary name",
    "allocate.named": "it has its name, which is not durable",
    "file.synced": "a small file's successor is durable, under its temporary name",
    "file.named": "it has taken the file's place, which is not durable",
    "roll.made": "a spare is ready, and no process knows",
    "roll.mapped": "the appender has the next segment, which is not bound yet",
    "roll.bound": "its header is stored; nothing is announced",
    "roll.announced": "the appender has announced its new segment, without a frame",
    "discard.added": "a burst's discards are in the ledger's other slot",
    "discard.committed": "the ledger counts them; the burst is not done with",
    "sync.written": "frames were read back and found good; nothing is synced",
    "sync.synced": "the segment is synced; it may have no name yet",
    "sync.named": "it has its name, which is not durable",
    "index.written": "readers know of the commit; its entries are not in the index",
    "index.committed": "the index holds the commit; the watermark does not",
    "index.forgotten": "entries of sealed segments are dropped in a transaction that is open",
    "sync.published": "the watermark has moved; the deliverer was not told",
    "seal.reserved": "the footer has its room",
    "seal.cut": "the file ends where its footer will end",
    "seal.written": "the file ends with its footer, unsynced",
    "seal.synced": "it is durable; the keeper still counts the segment among those to be sealed",
    "pack.synced": "a packed segment is whole and durable, under its temporary name",
    "pack.named": "it has taken the segment's place, which is not durable",
    "renew.synced": "a suspect segment's frames are in a fresh file, durable, under its temporary name",
    "renew.kept": "the suspect has a name in quarantine, too",
    "renew.named": "the fresh file has taken its place, which is not durable",
    "retire.named": "a delivered segment is called sent, which is not durable",
    "retire.counted": "the book counts what a delivered segment has refused; the segment is there",
    "sums.written": "the book of sums has what must be in Kafka of a segment, which is not durable",
    "retire.removed": "a delivered segment is unlinked, which is not durable",
    "recover.owned": "the spool is ours, and as it was left",
    "recover.cleaned": "half-made files are gone",
    "recover.header": "a damaged header is rewritten, unsynced",
    "recover.moving": "a misnamed segment is on its way to its own name, which is not durable",
    "recover.identified": "the spool's identity is known, and written down",
    "recover.torn": "the bytes behind the last good frame are in quarantine; the segment is not sealed",
    "recover.named": "a segment of another boot has its name, which is not durable",
    "recover.settled": "the files are in order; no worker runs",
    "recover.walked": "the keeper has committed what it found",
    "recover.salvaging": "a burst in staging is counted as tried, and not stored yet",
    "recover.salvaged": "it is stored; the tries are not forgotten",
    "repair.synced": "a damaged segment's successor is durable, under its temporary name",
    "repair.kept": "the damaged one has a name in quarantine, too",
    "repair.named": "the successor has taken its place, which is not durable",
    "repair.ordered": "the segments are repaired; the metadata is not",
    "mark.acknowledged": "Kafka has answered; no process has written it down",
    "mark.written": "marks are written in a transaction that is open",
    "mark.committed": "the marks are durable; no process was told",
    "transaction.flushed": "messages and the record of them are in Kafka, in a transaction that is open",
    "task.settled": "a job's task knows of messages what became of them, and wrote no outcome file",
    "lend.settled": "a job asks for delivery; nothing is in flight here, and no process was told",
    "lend.granted": "delivery is lent, durably; the worker has not gone on",
    "lend.ended": "delivery is taken back, durably; what the job delivered is not taken over",
    "replay.sent": "a replay has sent everything, and marked it; its command was not told",
    "replay.told": "its command has said so; its state is there",
    "replay.forgotten": "its state is gone; its marks are there",
    "adopt.filed": "the discards of a job are in the discard file, durably; the marks do not have it",
    "adopt.marked": "outcomes of a job are in the marks, durably; their files are there",
    "adopt.removed": "their files are gone; the directory is there",
}
"""The state at each place."""


def reach(point: str) -> None:
    """Die here if this place is the next one in the file. `point` is one of POINTS."""
    if ARMED and strike_off(Path(ARMED), point):
        os.kill(os.getpid(), signal.SIGKILL)


def strike_off(file: Path, point: str) -> bool:
    """Whether the first line is `point`; it is gone then."""
    try:
        first, *rest = file.read_text().splitlines()
    except (FileNotFoundError, ValueError):
        return False
    if first != point:
        return False
    successor = file.with_suffix(".next")
    successor.write_text("".join(f"{line}\n" for line in rest))
    os.replace(successor, file)
    return True
