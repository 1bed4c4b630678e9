"""A home of Java whose `java` is a few lines of shell."""

from __future__ import annotations

from pathlib import Path
from typing import Final

MODULES: Final = 'MODULES="java.base jdk.incubator.vector"\n'


def fake_java(
    home: Path, version: str, script: str = "", *, modules: str = MODULES, release: bool = True
) -> Path:
    """Write a `java` that reports a version on request, and else runs a script."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    said = f'[ "$1" = -version ] && {{ echo \'openjdk version "{version}"\' >&2; exit; }}'
    program.write_text(f"#!/bin/sh\n{said}\n{script}\n")
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n{modules}')
    return home
