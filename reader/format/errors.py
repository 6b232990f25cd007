"""Errors of a store that is not a store, or not a complete one."""

from __future__ import annotations


class StoreError(ValueError):
    """A folder is not a readable store; the message says what was found, what was expected and what to do."""


class IncompleteStoreError(StoreError):
    """The folder holds a pack that has not finished."""
