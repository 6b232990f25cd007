"""A pack in parts, on several machines: which inputs are whose, and the store that is sealed of all of them.

Each part is packed as any pack; nothing here decodes.
"""
