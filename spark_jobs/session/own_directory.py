"""Directories that only this user can write to.

Files kept between runs are trusted by their names and checksums, and another user who can write the
one can write the other. So they are trusted only where this user alone can write.

The trap: names below `/tmp` are predictable, and a directory or a link that another user made there
first looks like ours. So the directory's owner and mode are checked, not its path.

Source: CWE-379, a temporary file in a directory with insecure permissions.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH


def make_private(directory: Path) -> bool:
    """Create a missing directory; return whether the directory is private to this user.

    Raises:  OSError.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return is_private(directory)


def is_private(directory: Path) -> bool:
    """Return whether a path is a directory, not a link, that only this user owns and writes to.

    Raises:  OSError.
    """
    found = directory.lstat()
    is_ours = found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode)
    return is_ours and not found.st_mode & _WRITABLE
