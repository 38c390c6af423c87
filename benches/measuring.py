"""What the benches share: processes that measure on one plugin each, asked in turn, and how figures are written."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
LIBRARY = CHECKOUT / "target" / "release" / "libmainstay.so"


def default_plugin() -> Path:
    """The real plugin to compare with."""
    return Path(subprocess.check_output([sys.executable, CHECKOUT / "scripts" / "plugins.py"], text=True).strip())


def clean_environment() -> dict[str, str]:
    """The environment of this process, without what the user may have set for JAX and Mainstay."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MAINSTAY_", "JAX_"))}


def environment(platform: str, library: Path, create_options: dict[str, object], folder: Path) -> dict[str, str]:
    """The environment in which JAX has one plugin, with these options, as its platform."""
    config = folder / f"{platform}.json"
    config.write_text(json.dumps({"library_path": str(library), "create_options": create_options}))
    return clean_environment() | {
        "PJRT_NAMES_AND_LIBRARY_PATHS": f"{platform}:{config}",
        "JAX_PLATFORMS": platform,
        "PYTHONPATH": str(CHECKOUT / "python"),
    }


class Measuring:
    """A process that measures on one plugin: a script that serves requests (`serve`), a line of JSON each."""

    def __init__(self, script: Path, env: dict[str, str], *arguments: str) -> None:
        """Starts it."""
        self.process = subprocess.Popen(
            [sys.executable, script, *arguments], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *request: Any) -> Any:
        """The answer to a request; ends the bench where the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"bench: a process ended with exit code {self.process.wait()} when asked for {request}")
        return json.loads(line)

    def close(self) -> None:
        """Ends it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def serve(answer: Callable[..., Any]) -> None:
    """In the process that measures: answers requests until standard input ends."""
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)


def duration(seconds: float) -> str:
    """A time with a unit that suits it, to three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
