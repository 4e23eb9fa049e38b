"""Fuzzing what is parsed: what tools/fuzz runs.

targets      the parsers, each as a function of bytes that must return
sealed       inputs whose digests are made right, so that what lies behind them is reached
wall         memory that ends at a page nobody may touch
seeds        where the corpus begins
campaign     one run of atheris in a process of its own, and what it found
run          that process
"""
