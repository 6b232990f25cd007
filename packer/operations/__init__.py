"""The work of the other commands: verify, show, info, plan, subset, merge, requantize, push and pull, doctor.

Each returns a report or a picture. Never prints, exits or imports torch.
"""
