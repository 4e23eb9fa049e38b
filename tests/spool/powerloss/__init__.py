"""Power losses of a spool, made from a recording of what it did to its disk. See tools/powerloss."""
