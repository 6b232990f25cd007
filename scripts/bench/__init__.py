"""Benchmarks, each a generator of ways: `python -m scripts.bench [NAME...] [--quick]`, from the root of the repository."""
