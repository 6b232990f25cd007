"""From inputs and options to a sealed store: `pack`, its resume, its parts, `pack update`, `pack_dataset`.

Decides what is decoded and when it is committed. Never decodes in this process, never prints.
"""
