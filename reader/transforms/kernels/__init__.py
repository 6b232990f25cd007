"""The computations of transforms on pixels, for whole batches: torchvision's operations, and boxes that are cut and resized.

Know no randomness and no labels.
"""
