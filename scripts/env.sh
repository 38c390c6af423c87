# Sourced before every cargo call: tells bindgen where libclang is when only the project's own copy is there.

# Whether the system has a libclang where bindgen finds it by itself. (libclang-cpp is another library.)
has_system_libclang() {
    local path
    for path in /usr/lib/llvm-*/lib/libclang*.so* /usr/lib{,64}/libclang*.so* /usr/lib64/llvm*/lib/libclang*.so* \
        /usr/lib/*-linux-gnu/libclang*.so* /usr/local/lib/libclang*.so*; do
        if [ -e "$path" ] && [[ "$path" != *libclang-cpp* ]]; then
            return 0
        fi
    done
    return 1
}

# Whether bindgen needs the project's own libclang.
needs_libclang() { [ -z "${LIBCLANG_PATH:-}" ] && ! has_system_libclang; }

if needs_libclang; then
    for wheel in "$PWD"/.venv/lib/python3.*/site-packages/clang/native; do
        if [ -e "$wheel/libclang.so" ]; then
            export LIBCLANG_PATH="$wheel"
        fi
    done
    unset wheel
fi
