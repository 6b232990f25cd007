"""The rows of each rank and step: the orders of epochs, ranks, steps and their sizes, and the state of a loop.

Reads no pixel, starts no thread and knows no device.
"""
