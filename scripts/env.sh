# Sourced before every cargo call: tells bindgen where libclang is when only the project's own copy is there.

# Prints a directory in which bindgen finds a system libclang by itself; fails where there is none.
system_libclang() {
    local directory
    for directory in /usr/lib/llvm-*/lib /usr/lib /usr/lib64 /usr/lib64/llvm*/lib /usr/lib/*-linux-gnu \
        /usr/local/lib /usr/local/llvm*/lib; do
        if compgen -G "$directory/libclang.so*" >/dev/null || compgen -G "$directory/libclang-*.so*" >/dev/null; then
            echo "$directory"
            return 0
        fi
    done
    return 1
}

if [ -z "${LIBCLANG_PATH:-}" ] && ! system_libclang >/dev/null; then
    for wheel in "$PWD"/.venv/lib/python3.*/site-packages/clang/native; do
        if [ -e "$wheel/libclang.so" ]; then
            export LIBCLANG_PATH="$wheel"
        fi
    done
    unset wheel
fi
