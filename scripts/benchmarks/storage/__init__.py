"""Where the bytes of rows are: a disk, object storage, levels, and the form that they have there."""
