"""Benchmarks: how long every stage takes, how that grows, and whether a version has become slower.

`python -m benchmarks` measures and writes a file and a page; with `--compare` it judges two files.
"""
