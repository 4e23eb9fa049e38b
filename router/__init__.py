"""From the spool to the dispatchers: which partition, when, and what was delivered."""
