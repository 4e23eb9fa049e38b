"""The soak: what tools/soak runs.

options     how long, how hard, and the command line
plan        what befalls bruce, its brokers and its disk in which minute, from a seed
balloon     a file that takes all room of a filesystem, and whatever is given back
samples     memory and descriptors of each process, and when they count as flat
soak        the soak itself
plot        its picture
"""
