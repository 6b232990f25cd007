"""One module a library: how it packs, and how it reads."""
