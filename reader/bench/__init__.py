"""What `pack bench` measures: ways to read a store beside copies of memory and the disk; timelines.

Nothing else imports it.
"""
