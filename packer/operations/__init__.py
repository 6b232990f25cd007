"""What the commands do beside packing: verify, show, info, plan, subset, merge, requantize, push and pull, doctor.

Each returns a report or a picture. Never prints, exits or imports torch.
"""
