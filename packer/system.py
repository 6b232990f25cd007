"""What the operating system gives: flags of `open`, and errno of full disks and used-up descriptors."""

from __future__ import annotations

import errno
import os

FULL = (errno.ENOSPC, errno.EDQUOT)

# Without it Windows opens files as text.
BINARY = getattr(os, "O_BINARY", 0)
# This process, or the system, can open nothing more: no file is to blame.
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
