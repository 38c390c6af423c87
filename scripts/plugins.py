#!/usr/bin/env python3
"""Prints where the PJRT plugins of the project's environment are: `plugins.py [default|all]`.

`all` prints the three CPU plugins, newest interface first, joined by colons.
"""

import sys
from importlib.metadata import files

# Distribution and shared library, newest PJRT interface first: 0.115 (the default), 0.106, 0.81.
PLUGINS = {
    "lammps-jax-pjrt-cpu": "pjrt_c_api_cpu_plugin.so",
    "fastatomstruct-xla-cpu": "libpjrt_cpu.so",
    "xla-cpu-pjrt": "xla_cpu_pjrt.so",
}


def path_of(distribution: str) -> str:
    """The absolute path of a distribution's plugin."""
    for file in files(distribution) or ():
        if file.name == PLUGINS[distribution]:
            return str(file.locate())
    sys.exit(f"plugins.py: {distribution} has no {PLUGINS[distribution]}; run make setup")


def main() -> None:
    """Prints the path or paths asked for."""
    match sys.argv[1:]:
        case [] | ["default"]:
            print(path_of(next(iter(PLUGINS))))
        case ["all"]:
            print(":".join(path_of(distribution) for distribution in PLUGINS))
        case _:
            sys.exit("usage: plugins.py [default|all]")


if __name__ == "__main__":
    main()
