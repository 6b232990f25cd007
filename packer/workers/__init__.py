"""Worker processes that decode blocks, and the engine that assigns their work and replaces dead ones.

Never writes the journal or the manifest.
"""
