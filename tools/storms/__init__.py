"""The SIGKILL storm and the outage: what tools/storm runs.

options      how hard, and the command line
timeline     what is killed when, from a seed
watcher      looks at `brucectl status` all the time, and holds it to its equation
unmarked     which messages a killed deliverer may have sent without saying so
evidence     what is found wrong, and what is kept of it
storm        the storm itself
outage       Kafka away from the start; leaders moved between kill and restart
"""
