"""A store at a URL while it is made: the objects below it, what is there, and a pack on its way there.

Knows no inputs and decodes nothing.
"""
