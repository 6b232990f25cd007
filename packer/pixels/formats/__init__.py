"""Image formats: headers, orientation, bit depth, and the libraries that decode each.

Knows no row, no crop and no store.
"""
