"""Hostile senders and neighbours: what tools/adversary runs.

options      how long, how hard, and the command line
attack       the base class of attacks
forging      payloads that are made to look like parts of the log, and kills that make a successor search it
floods       datagrams that cost more than they seem
streams      connections that do nothing, or almost nothing
insider      readers of the group, which know the secret, and lock files
killing      the death of everything, with and without a holder of the sockets
operations   copied files, the user's own functions, commands that die, the time of day
partitioner  the user's own function, which raises
neighbours   planted files, crowds at the other doors, clocks, and the death of everything
planting     the bytes of forged frames, footers, headers and packed blocks
catalogue    the list of all attacks
villain      a process of another user
honest       senders of streams, and of messages with replies, that count
arena        one daemon with its Kafka, its honest senders and its consumer
consumer     everything that Kafka has, and when it came
samples      memory, descriptors and syncs during an attack
judgement    the conditions that must hold
"""
