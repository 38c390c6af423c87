#!/usr/bin/env python3
"""Installs packages that only some tests and benches need, once, under build/: `packages.py FOLDER PIP_ARGUMENTS…`.

Prints where they are. They come without what they depend on: that is named, and pinned, by whoever asks.
"""

import subprocess
import sys
from pathlib import Path

INSTALLED = Path(__file__).resolve().parent.parent / "build" / "pathways"
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade"]


def install(folder: str, *what: str) -> Path:
    """The folder with these packages; made if it is not there."""
    target = INSTALLED / folder
    if not target.exists():
        print(f"installing {' '.join(what)} into build/", file=sys.stderr, flush=True)
        # Moved when it is complete: an interrupted installation must not pass for one.
        unfinished = target.with_suffix(".unfinished")
        subprocess.run([*PIP, "--target", str(unfinished), *what], check=True)
        unfinished.rename(target)
    return target


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: packages.py FOLDER PIP_ARGUMENTS...")
    print(install(*sys.argv[1:]))
