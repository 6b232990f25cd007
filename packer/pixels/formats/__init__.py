"""Image formats: headers, orientation, ICC profiles, bit depth, and the libraries that decode each.

Knows no row, no crop and no store.
"""
