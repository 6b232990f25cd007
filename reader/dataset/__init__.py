"""`MemmapDataset`: a store as a torch Dataset: opened, indexed, collated.

Gives rows in the requested order.
"""
