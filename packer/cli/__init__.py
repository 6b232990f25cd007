"""The command `pack`: the only package that imports click, prints reports or knows an exit code.

Never decodes an image or writes a store itself.
"""
