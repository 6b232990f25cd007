"""Whether pixels and what a network learns are those of the folder."""
