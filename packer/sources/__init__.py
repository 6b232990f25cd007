"""The bytes of one input: a file, a member of an archive, an object; and whether its disk or bucket is still there.

Distinguishes errors of the system from errors of the content. Knows no image format.
"""
