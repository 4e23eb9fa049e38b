"""What is wrong on a host, or could be better: findings, each with its remedy. Nothing is changed.

A check is a pure function of what was read; `look` of its module reads. What cannot be read is said, and
nothing is guessed from it.
"""
