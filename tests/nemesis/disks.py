"""Disks that a test may fill, or copy behind the back of the system that writes to them.

An image is a file with an ext4 file system in it, mounted by a loop device. What a process wrote
and did not flush is in the page cache of the mounted system, not in the image: a copy of the image
is what a power failure would leave. (What the *device* was given and not flushed is in the image,
too, so this loses less than a disk with a volatile cache would.)

Everything mounted is unmounted by `close`. Mounting takes root's rights; `Disks` raises `NoMounts`
without them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

IMAGE_BYTES: Final = 256 * 1024 * 1024  # sparse: it takes what was written to it


class NoMounts(Exception):
    """This machine does not let us mount; the message says why."""


class Disks:
    """Mount points below one directory. Use `close`, also after a failure."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._mounted: list[Path] = []
        self._images: dict[Path, Path] = {}
        self._copies = 0
        try:
            probe = directory / "probe"
            self.make_image(probe)
            self.unmount(probe)
        except (OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", b"") or str(error).encode()
            self.close()
            raise NoMounts(detail.decode(errors="replace").strip()) from error

    # --- images -------------------------------------------------------------------------------

    def make_image(self, mount_point: Path) -> None:
        """Make an ext4 image and mount it there."""
        image = self._directory / f"{mount_point.name}.image"
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(image))
        self._mount_image(image, mount_point)

    def copy_image(self, mount_point: Path) -> Path:
        """The image as it is this moment, without any sync: what a power failure leaves."""
        image = self._images[mount_point]
        self._copies += 1
        copy = image.with_name(f"{mount_point.name}.copy-{self._copies}")
        _run("cp", "--sparse=always", str(image), str(copy))
        return copy

    @staticmethod
    def flush(mount_point: Path) -> None:
        """Bring everything so far to the image."""
        _run("sync", "--file-system", str(mount_point))

    def replace(self, mount_point: Path, copy: Path) -> None:
        """Mount the copy instead. Its journal is played, as after a power failure."""
        self.unmount(mount_point)
        self._images.pop(mount_point).unlink()
        self._mount_image(copy, mount_point)

    def _mount_image(self, image: Path, mount_point: Path) -> None:
        mount_point.mkdir(parents=True, exist_ok=True)
        _run("mount", "-o", "loop", str(image), str(mount_point))
        self._mounted.append(mount_point)
        self._images[mount_point] = image

    # --- tmpfs --------------------------------------------------------------------------------

    def make_small(self, mount_point: Path, size_bytes: int) -> None:
        """A disk in memory, of a size that `resize` can change."""
        mount_point.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(mount_point))
        self._mounted.append(mount_point)

    def resize(self, mount_point: Path, size_bytes: int) -> None:
        """Of a disk in memory. Not below what is used."""
        _run("mount", "-o", f"remount,size={size_bytes}", str(mount_point))

    @staticmethod
    def used_bytes(mount_point: Path) -> int:
        stat = os.statvfs(mount_point)
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize

    # --- the end ------------------------------------------------------------------------------

    def unmount(self, mount_point: Path) -> None:
        """Nothing may use it any more. Its loop device goes with it."""
        _run("umount", str(mount_point))
        self._mounted.remove(mount_point)

    def close(self) -> None:
        """Unmount all that is mounted; detach what is still in use, to go with its last user."""
        while self._mounted:
            _run("umount", "--lazy", str(self._mounted.pop()))


def _run(*command: str) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # where mkfs is; not in every PATH
    environment = {**os.environ, "PATH": path}
    subprocess.run(command, check=True, capture_output=True, timeout=120, env=environment)
