"""Stores made of rows of other stores: `pack subset` and `pack merge`, and the copying that both are.

Nothing is decoded, and the other stores are only read.
"""
