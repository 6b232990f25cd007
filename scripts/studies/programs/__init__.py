"""Training programs as others write them, each beside its pixpack version: lines changed, losses, loading time."""
