"""The soak of tools/soak.

options     how long, how hard, and the command line
plan        the troubles of bruce, its brokers and its disk in each minute, from a seed
balloon     a file that takes all room of a filesystem, also room that is freed later
samples     memory and descriptors of each process, and when they count as flat
soak        the soak itself
plot        its picture
"""
