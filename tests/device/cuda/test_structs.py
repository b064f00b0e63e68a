"""The ctypes structures, constants and signatures, held against a real cuda.h."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from ctypes import sizeof
from pathlib import Path

import pytest

from zse.device.cuda import (
    errors,
    graph,
    info,
    links,
    memory,
    module,
    pool,
    shared,
    stream,
    structs,
)
from zse.device.cuda.signatures import BRIEF, SIGNATURES

FIELDS = {
    "CUlaunchConfig": (
        structs.LaunchConfig,
        {
            "gridDimX": "grid_x",
            "gridDimZ": "grid_z",
            "blockDimX": "block_x",
            "blockDimZ": "block_z",
            "sharedMemBytes": "shared_bytes",
            "hStream": "stream",
            "attrs": "attributes",
            "numAttrs": "num_attributes",
        },
    ),
    "CUlaunchAttribute": (structs.LaunchAttribute, {"id": "id", "value": "value"}),
    "CUlaunchAttributeValue": (
        structs.AttributeValue,
        {"clusterDim": "dimension", "cooperative": "number"},
    ),
    "CUmemLocation": (structs.MemoryLocation, {"type": "type", "id": "id"}),
    "CUmemAllocationProp": (
        structs.AllocationProperties,
        {
            "type": "type",
            "requestedHandleTypes": "handle_types",
            "location": "location",
            "win32HandleMetaData": "windows_metadata",
            "allocFlags": "flags",
        },
    ),
    "CUmemAccessDesc": (structs.AccessDescription, {"location": "location", "flags": "flags"}),
}
CONSTANTS = {
    "CU_LAUNCH_ATTRIBUTE_COOPERATIVE": structs.ATTRIBUTE_COOPERATIVE,
    "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION": structs.ATTRIBUTE_CLUSTER_DIMENSION,
    "CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE": structs.ATTRIBUTE_CLUSTER_SCHEDULING,
    "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION": structs.ATTRIBUTE_PROGRAMMATIC_SERIALIZATION,
    "CU_CLUSTER_SCHEDULING_POLICY_SPREAD": structs.CLUSTER_SCHEDULING_SPREAD,
    "CU_MEM_ALLOCATION_TYPE_PINNED": structs.ALLOCATION_PINNED,
    "CU_MEM_LOCATION_TYPE_DEVICE": structs.LOCATION_DEVICE,
    "CU_MEM_ACCESS_FLAGS_PROT_READWRITE": structs.ACCESS_READ_WRITE,
    "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR": structs.HANDLE_FILE_DESCRIPTOR,
    "CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK": links._PERFORMANCE_RANK,
    "CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED": links._NATIVE_ATOMICS,
    "CU_MEMHOSTREGISTER_PORTABLE|CU_MEMHOSTREGISTER_DEVICEMAP": shared._REGISTER_PORTABLE_MAPPED,
    "CU_MEM_ALLOC_GRANULARITY_RECOMMENDED": pool._GRANULARITY_RECOMMENDED,
    "CU_MEMHOSTALLOC_PORTABLE": memory._PORTABLE,
    "CU_STREAM_NON_BLOCKING": stream._STREAM_NON_BLOCKING,
    "CU_EVENT_DISABLE_TIMING": stream._EVENT_DISABLE_TIMING,
    "CU_STREAM_CAPTURE_MODE_RELAXED": graph._CAPTURE_RELAXED,
    "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": module._MAX_DYNAMIC_SHARED_BYTES,
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": info.MULTIPROCESSORS,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_MODE": info.COMPUTE_MODE,
    "CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE": info._MEMORY_CLOCK_KILOHERTZ,
    "CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH": info._MEMORY_BUS_BITS,
    "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE": info._L2_BYTES,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": info._CAPABILITY_MAJOR,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": info._CAPABILITY_MINOR,
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": info._SHARED_MEMORY_OPTIN_BYTES,
    "CU_COMPUTEMODE_PROHIBITED": info.MODE_PROHIBITED,
    "CU_COMPUTEMODE_EXCLUSIVE_PROCESS": info.MODE_EXCLUSIVE,
    "CUDA_ERROR_OUT_OF_MEMORY": errors.OUT_OF_MEMORY,
    "CUDA_ERROR_DEINITIALIZED": errors.DEINITIALIZED,
    "CUDA_ERROR_NOT_FOUND": module._NOT_FOUND,
}
FAULTS = {
    "ECC_UNCORRECTABLE", "NVLINK_UNCORRECTABLE", "CONTAINED", "ILLEGAL_ADDRESS", "LAUNCH_TIMEOUT",
    "CONTEXT_IS_DESTROYED", "ASSERT", "HARDWARE_STACK_ERROR", "ILLEGAL_INSTRUCTION",
    "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC", "LAUNCH_FAILED",
    "TENSOR_MEMORY_LEAK",
}  # fmt: skip


def find_header() -> Path:
    """Return the folder of a cuda.h: the toolkit's, or the one that triton carries."""
    folders = [
        Path("/usr/local/cuda/include"),
        Path(sysconfig.get_paths()["purelib"]) / "triton/backends/nvidia/include",
    ]
    for folder in folders:
        if (folder / "cuda.h").is_file():
            return folder
    pytest.skip("no cuda.h on this machine")


@pytest.fixture(scope="module")
def said_by_header(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Sizes, offsets and constants as the C compiler sees them."""
    include = find_header()
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    names = [*CONSTANTS, *(f"CUDA_ERROR_{name}" for name in FAULTS)]
    lines = [f'printf("{name} %d\\n", (int){name});' for name in names]
    for struct, (_, fields) in FIELDS.items():
        lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
        lines += [
            f'printf("{struct}.{field} %zu\\n", offsetof({struct}, {field}));' for field in fields
        ]
    source = "\n".join(lines)
    folder = tmp_path_factory.mktemp("header")
    (folder / "probe.c").write_text(
        "#include <stdio.h>\n#include <stddef.h>\n#include <cuda.h>\n"
        f"int main(void) {{\n{source}\nreturn 0;\n}}\n"
    )
    program = folder / "probe"
    subprocess.run(
        [compiler, "-I", str(include), str(folder / "probe.c"), "-o", str(program)], check=True
    )
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


@pytest.mark.parametrize("struct", FIELDS)
def test_a_structure_lies_in_memory_as_the_header_says(
    struct: str, said_by_header: dict[str, int]
) -> None:
    kind, fields = FIELDS[struct]
    assert sizeof(kind) == said_by_header[struct]
    for theirs, ours in fields.items():
        assert getattr(kind, ours).offset == said_by_header[f"{struct}.{theirs}"], theirs


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_has_the_value_of_the_header(name: str, said_by_header: dict[str, int]) -> None:
    assert CONSTANTS[name] == said_by_header[name]


def test_the_faults_are_the_codes_that_lose_the_context(said_by_header: dict[str, int]) -> None:
    assert {said_by_header[f"CUDA_ERROR_{name}"] for name in FAULTS} == errors.FAULT_CODES


def test_no_brief_function_waits() -> None:
    assert SIGNATURES.keys() >= BRIEF
    assert not [name for name in BRIEF if "Synchronize" in name or "Alloc" in name]


def test_every_signature_takes_the_parameters_of_the_header() -> None:
    text = (find_header() / "cuda.h").read_text(errors="replace")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    aliases = {
        new: old for old, new in re.findall(r"#define\s+(cu\w+)\s+(?:__CUDA_API_\w+\()?(cu\w+)", text)
    }  # fmt: skip
    for name, types in SIGNATURES.items():
        known_as = aliases.get(name, name)
        found = re.search(rf"CUresult\s+CUDAAPI\s+{known_as}\s*\(([^)]*)\)", text)
        assert found, f"{name} is not in cuda.h"
        parameters = [p.strip() for p in found[1].split(",") if p.strip() not in ("", "void")]
        assert len(parameters) == len(types), (name, parameters)
        for parameter, kind in zip(parameters, types, strict=True):
            assert size_of(parameter) == sizeof(kind), (name, parameter)


def size_of(parameter: str) -> int:
    """Return the bytes of a parameter declared in cuda.h, on a 64-bit machine."""
    kind = re.sub(r"\bconst\b", "", parameter).strip()
    if "*" in kind or kind.startswith(("size_t", "unsigned long long", "cuuint64_t")):
        return 8
    if kind.startswith(("CUdeviceptr", "CUmemGenericAllocationHandle")):
        return 8
    if re.match(r"CU(context|module|function|stream|event|graph|graphExec)\b", kind):
        return 8
    return 1 if kind.startswith("unsigned char") else 4
