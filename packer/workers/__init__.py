"""Processes that decode blocks, and the engine that gives them work and replaces those that die.

Never writes the journal or the manifest.
"""
