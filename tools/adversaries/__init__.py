"""Hostile senders and neighbours: what tools/adversary runs.

options      how long, how hard, and the command line
attack       what an attack is
forging      payloads that are made to look like parts of the log, and the deaths that make somebody look
floods       datagrams that cost more than they seem
streams      connections that do nothing, or almost nothing
neighbours   planted files, crowds at the other doors, clocks, and the death of everything
planting     the bytes of forged frames, footers, headers and packed blocks
catalogue    the list of all attacks
villain      a process of another user
honest       a sender of streams that counts
arena        one daemon with its Kafka, its honest senders and its consumer
consumer     everything that Kafka has, and when it came
samples      memory, descriptors and syncs while it happens
judgement    what must hold
"""
