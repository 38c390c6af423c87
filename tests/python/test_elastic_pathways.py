"""The real `pathwaysutils`, unmodified, from PyPI, over slices whose workers are killed.

Its versions and what they import are installed once, on demand, under build/; see python/requirements/pathways.txt.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import CHECKOUT, HERE, RESTLESS, Setup, check, run


def _install(folder: str, *what: str) -> Path:
    """The folder with these packages; made if it is not there."""
    command = [sys.executable, str(CHECKOUT / "scripts" / "packages.py"), folder, *what]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


@pytest.mark.parametrize(
    ("version", "style", "jax"),
    [
        ("0.1.3", "manager", "pinned"),
        ("0.1.4", "manager", "pinned"),
        ("0.1.4", "manager", "0.10.0"),
        ("0.1.13", "retry", "pinned"),
        ("0.1.13", "retry", "0.10.0"),
        ("0.1.13", "snapshotter", "pinned"),
    ],
    ids=lambda value: value,
)
@pytest.mark.timeout(900)
def test_the_real_pathwaysutils(version: str, style: str, jax: str) -> None:
    """A slice is killed; training goes on, takes the replacement in, and ends with the right sums."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    path = [HERE, CHECKOUT / "python", _install(f"pathwaysutils-{version}", f"pathwaysutils=={version}")]
    if jax != "pinned":
        path.append(_install(f"jax-{jax}-{tag}", f"jax=={jax}", f"jaxlib=={jax}"))
    path.append(_install(f"needed-{tag}", "-r", str(CHECKOUT / "python" / "requirements" / "pathways.txt")))
    setup = Setup(slices=2, env={**RESTLESS, "PYTHONPATH": os.pathsep.join(map(str, path))})
    printed = check(run([sys.executable, str(HERE / "pathways_loop.py"), style], setup))
    print(printed)
    assert jax == "pinned" or f"jax {jax}" in printed, printed
