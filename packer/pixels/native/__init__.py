"""The compiled part, which may be missing: a JPEG to a row in one pass over its lines, in C.

It makes the bytes that `decode.py` makes with libjpeg-turbo and Pillow-SIMD, and leaves all that it does not serve to that.
It never decides what is rejected, and words no reason.
"""
