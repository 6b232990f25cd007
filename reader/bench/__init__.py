"""What `pack bench` measures: ways to read a store beside copies of memory and the disk; timelines.

Nothing else in `reader` imports it. Never changes a store.
"""
