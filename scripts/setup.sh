#!/usr/bin/env bash
# Brings what the build, the demo and the tests need; says nothing and returns at once when all is there.
# System packages come by apt where this runs as root; Python packages, pinned, go into .venv.
# PYTHON names the interpreter to use (default: the first of python3, python3.13, … that is new enough).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/env.sh

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
    say "installing system packages with apt: $*"
    if [ -z "${apt_updated:-}" ]; then
        apt-get update -qq
        apt_updated=1
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

python_is_new_enough() {
    command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if python_is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer found as ${PYTHON:-python3}; name one with make PYTHON=/path/to/python3"
}

check_rust() {
    command -v cargo >/dev/null || fail "cargo is not there; install a Rust toolchain (1.88 or newer) first"
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 ||
        say "rustfmt or clippy is not there, which make test needs; add them with: rustup component add rustfmt clippy"
}

check_c() {
    if ! command -v cc >/dev/null; then
        can_apt || fail "no C compiler found as cc; install gcc or clang"
        apt_install gcc libc6-dev
    fi
    if needs_libclang && can_apt; then
        apt_install libclang-dev || say "apt could not bring libclang"
    fi
}

# What .venv was made from: a change makes a new one.
packages_key() {
    echo "${PYTHON:-any}"
    cat python/requirements/*.txt
}

make_venv() {
    local python
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        can_apt || fail "$python has no venv module; install it (Debian: apt-get install python3-venv)"
        apt_install python3-venv
    fi
    say "making .venv with $("$python" --version); the packages are about 400 MB to fetch, once"
    rm -rf .venv
    "$python" -m venv .venv
    pip_install -r python/requirements/jax.txt -r python/requirements/plugins.txt -r python/requirements/dev.txt
    if needs_libclang; then
        say "no libclang on this system: taking the one from PyPI"
        pip_install -r python/requirements/libclang.txt
    fi
    packages_key >.venv/packages.key
}

# The project's own package, editable, so that it finds the library that cargo builds in this checkout.
install_own_package() {
    say "installing the mainstay package into .venv"
    pip_install --quiet --no-build-isolation --editable .
    cp pyproject.toml .venv/mainstay.key
}

pip_install() {
    .venv/bin/python -m pip install --disable-pip-version-check --no-deps "$@"
}

check_rust
check_c
if ! .venv/bin/python -c '' 2>/dev/null || [ "$(packages_key)" != "$(cat .venv/packages.key 2>/dev/null)" ]; then
    make_venv
fi
if ! cmp -s pyproject.toml .venv/mainstay.key; then
    install_own_package
    say "done"
fi
