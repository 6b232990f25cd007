"""One module a command of `pack`: its options, the call that does the work, and what it prints.

What commands share, messages, progress, signals and exit codes, is in `packer.cli`. Nothing here decodes or writes a store.
"""
