"""Ours and its peers on the same work: see `tests/benchmarks/README.md`."""
