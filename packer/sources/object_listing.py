"""The program that lists a folder in object storage by obstore: a line of JSON for each object: name, bytes, ETag, last change.

A process of its own, as obstore's runtime survives no fork. What it cannot list it says nothing of: it exits with 1.
"""

from __future__ import annotations

import json
import signal

from packer.sources.object_storage import direct_objects


def main(url: str) -> int:
    """Print what is below a URL; returns the exit code."""
    # Ctrl-C is for the command, which ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    objects = direct_objects(url)
    if objects is None:
        return 1
    try:
        for about in objects.listed():
            print(json.dumps(about))
    except Exception:  # obstore has errors of its own; who asked lists by s3fs, which words them
        return 1
    return 0
