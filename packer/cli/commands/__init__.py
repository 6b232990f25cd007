"""One module per command of `pack`: its options, the library call, and its output.

Shared code (messages, progress, signals, exit codes) is in `packer.cli`. No command decodes or writes a store itself.
"""
