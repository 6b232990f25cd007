"""Where a loader's rows are read from: copies in memory and on devices, the levels of a store, and the choice.

Begin in `reading.py`. Never decides which rows a batch takes.
"""
