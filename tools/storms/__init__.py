"""The SIGKILL storm and the outage: what tools/storm runs.

options      how hard, and the command line
timeline     the kills and their times, from a seed
watcher      reads `brucectl status` all the time, and checks its equation
unmarked     the messages that a killed deliverer may have sent without marking them
evidence     the faults found, and the files kept of them
storm        the storm itself
outage       Kafka away from the start; leaders moved between kill and restart
"""
