"""Power losses of a spool, made from a recording of its writes to disk. See tools/powerloss."""
