"""Claims and other libraries, measured on this machine."""
