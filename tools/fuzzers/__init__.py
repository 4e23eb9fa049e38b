"""Fuzzing of the parsers, for tools/fuzz.

targets      the parsers, each as a function of bytes that must return
sealed       inputs whose digests are made right, so that the code after the checks is reached
wall         memory that ends at a page without access
seeds        the first inputs of a corpus
campaign     one run of atheris in a process of its own, and its findings
run          that process
"""
