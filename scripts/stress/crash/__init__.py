"""Kills, power cuts, failing disks and races."""
