"""Computations on the pixels of whole batches: torchvision's operations, and crops and resizes of boxes.

Know no randomness and no labels.
"""
