"""The headers in include/ against an independent source: the layouts that pypjrt carries.

A C program asks the C compiler about every struct, function and constant of our headers. Nothing is passed
over: what one side declares and the other does not is a failure, unless it belongs to an extension that
NOT_OURS names.
"""

import ctypes
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pypjrt._abi import pjrt_0_114 as theirs

INCLUDE = Path(__file__).resolve().parents[2] / "include"
HEADERS = ["pjrt_c_api.h", "pjrt_extensions.h", "xla_ffi_c_api.h"]
TEXT = "\n".join((INCLUDE / name).read_text() for name in HEADERS)

# Extensions that Mainstay neither offers nor uses, and what belongs to them.
NOT_OURS = re.compile(
    r"JAX_|PLUGIN_|PJRT_(AbiVersion|COLLECTIVES|Callback|Client_RuntimeAbiVersion|Collectives|CrossHostTransfers"
    r"|Custom_Partitioner|DeviceEvent|Example|ExecutableAbiVersion|ExecutableMetadata|Executable_GetAbiVersion"
    r"|Get_Stream|Gpu|HostAllocator|HostMemoryAllocator|Megascale|MultiSlice|Profiler|Register_Batch|Register_Custom"
    r"|RuntimeAbiVersion|Stream|TpuExecutable|TpuTopology|Transfers|Triton|Wait_Until)"
)

STRUCTS = re.findall(r"^(?:typedef )?struct (\w+) \{$", TEXT, re.MULTILINE)
SIZED = re.findall(r"^PJRT_STRUCT_ENDS_AT\((\w+),", TEXT, re.MULTILINE)
CONSTANTS = re.findall(r"^(?:  (?=\w+ = )|#define (?=\w+_M\w+ \d))(\w+)", TEXT, re.MULTILINE)
FUNCTIONS = re.findall(r"^  X\((\w+)\)", TEXT, re.MULTILINE)


def their_structs() -> dict[str, type[ctypes.Structure]]:
    """The structs of pypjrt by name."""
    return {
        name: value
        for name, value in vars(theirs).items()
        if isinstance(value, type) and issubclass(value, ctypes.Structure) and not NOT_OURS.match(name)
    }


def their_constants() -> dict[str, int]:
    """The enumeration values and versions of pypjrt by name."""
    return {
        name: value
        for name, value in vars(theirs).items()
        if re.match(r"(PJRT|XLA_FFI)_", name)
        and isinstance(value, int)
        and not name.endswith("_STRUCT_SIZE")
        and not NOT_OURS.match(name)
    }


def fields(struct: type[ctypes.Structure]) -> Iterator[str]:
    """The struct's fields as C names them: those of an anonymous union count as the struct's own."""
    anonymous = getattr(struct, "_anonymous_", ())
    for name, kind, *_ in struct._fields_:
        if name not in anonymous:
            yield name
        elif isinstance(kind, type) and issubclass(kind, ctypes.Union):
            yield from (member for member, *_ in kind._fields_)


def offset(struct: str, field: str) -> str:
    return f"offsetof({struct}, {field})"


def size(struct: str, field: str) -> str:
    return f"sizeof((({struct}*)0)->{field})"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the C compiler says of our headers, by expression."""
    known = their_structs()
    questions = [*CONSTANTS, *(f"{name}_STRUCT_SIZE" for name in SIZED)]
    questions += [offset("PJRT_Api", name) for name in FUNCTIONS]
    for name in STRUCTS:
        questions.append(f"sizeof({name})")
        questions += [ask(name, field) for field in fields(known[name]) for ask in (offset, size)]

    folder = tmp_path_factory.mktemp("abi")
    includes = "".join(f'#include "{name}"\n' for name in HEADERS)
    prints = "".join(f'  printf("%zu\\n", (size_t)({question}));\n' for question in questions)
    source, program = folder / "probe.c", folder / "probe"
    source.write_text(f"#include <stdio.h>\n{includes}int main(void) {{\n{prints}}}\n")
    compiler = [os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}"]
    subprocess.run([*compiler, str(source), "-o", str(program)], check=True, timeout=120)
    answers = subprocess.check_output([str(program)], text=True, timeout=60).split()
    return dict(zip(questions, map(int, answers), strict=True))


def test_both_sides_declare_the_same_structs() -> None:
    assert len(STRUCTS) == len(set(STRUCTS))
    assert set(STRUCTS) == set(their_structs())
    assert len(STRUCTS) > 230


def test_the_same_structs_have_a_size_constant() -> None:
    with_constant = {name for name in STRUCTS if hasattr(theirs, f"{name}_STRUCT_SIZE")}
    assert set(SIZED) == with_constant


@pytest.mark.parametrize("name", STRUCTS)
def test_struct(name: str, ours: dict[str, int]) -> None:
    struct = their_structs()[name]
    assert ours[f"sizeof({name})"] == ctypes.sizeof(struct)
    for field in fields(struct):
        descriptor = getattr(struct, field)
        assert ours[offset(name, field)] == descriptor.offset, field
        assert ours[size(name, field)] == descriptor.size, field
    if name in SIZED:
        assert ours[f"{name}_STRUCT_SIZE"] == getattr(theirs, f"{name}_STRUCT_SIZE")


def test_functions_are_in_the_order_of_the_table(ours: dict[str, int]) -> None:
    assert sorted(theirs.SLOT, key=theirs.SLOT.__getitem__) == FUNCTIONS
    for name, slot in theirs.SLOT.items():
        assert ours[offset("PJRT_Api", name)] == theirs.VTABLE_OFFSET + 8 * slot, name


def test_constants(ours: dict[str, int]) -> None:
    assert len(CONSTANTS) == len(set(CONSTANTS))
    assert {name: ours[name] for name in CONSTANTS} == their_constants()


def test_the_headers_are_good_cpp_too(tmp_path: Path) -> None:
    source = tmp_path / "probe.cc"
    source.write_text("".join(f'#include "{name}"\n' for name in HEADERS))
    compiler = [os.environ.get("CXX", "c++"), "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}"]
    subprocess.run([*compiler, "-fsyntax-only", str(source)], check=True, timeout=120)
