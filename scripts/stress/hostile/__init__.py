"""Stores whose digests are right and whose meaning is wrong."""
