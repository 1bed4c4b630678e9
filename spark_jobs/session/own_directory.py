"""Directories that nobody else can put anything into.

What is kept from one run to the next is believed by its name and its checksum, and whoever can
write the one can write the other. So it is believed only where this user alone can write.

The surprise is who gets there first: names below `/tmp` are no secret, and a directory or a link
that somebody else made there looks like ours. So not the path is asked, but what lies there.

Source: CWE-379, a temporary file in a directory with insecure permissions.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH


def make_own(directory: Path) -> bool:
    """Make it if it is not there; is it this user's alone then? Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return is_own(directory)


def is_own(directory: Path) -> bool:
    """Is it this user's directory, no link to one, and nobody else's to write? Raises OSError."""
    found = directory.lstat()
    is_ours = found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode)
    return is_ours and not found.st_mode & _WRITABLE
