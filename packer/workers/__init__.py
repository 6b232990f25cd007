"""Processes that decode blocks, here or on a Ray cluster, and the engine that gives them work and replaces those that die.

Never writes the journal or the manifest.
"""
