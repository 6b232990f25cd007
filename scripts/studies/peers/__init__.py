"""Other libraries on the same photographs and rows, each by one module."""
