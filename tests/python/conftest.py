"""What every Python test needs: the library that `make build` made."""

import pytest

from harness import EXECUTABLE, LIBRARY


@pytest.fixture(autouse=True, scope="session")
def built() -> None:
    """Stops early, in words, where there is nothing to test."""
    for path in (LIBRARY, EXECUTABLE):
        if not path.is_file():
            pytest.exit(f"{path} is not there; run make build", returncode=2)
