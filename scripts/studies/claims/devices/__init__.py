"""Claims about sending to a device and computing there."""
