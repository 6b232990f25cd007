"""The figures of the README and docs, each beside its limit."""
