"""What a library would give: the matrices of Qwen2.5-0.5B's layers, for a step and a prompt.

    python scripts/bench/cpu_libraries.py onnxruntime --threads 2      # with the Python that has it
    python scripts/bench/cpu_libraries.py ggml --libraries FOLDER      # of libggml-base.so, -cpu.so

Four matrices a layer, 24 layers of different weights, each product fed with the first columns of
the one before; neither attention nor head. Each library gets the weights in the form that it
computes fastest. Memory that is the process's own is counted before the library is imported and
after a step, so a second copy of the weights shows. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Step = Callable[[np.ndarray], object]

LAYERS, GROUP = 24, 128
MATRICES = ((896, 1152), (896, 896), (896, 9728), (4864, 896))
"""Columns and rows: query, key and value; output; gate and up; down."""
NUM_WEIGHTS = LAYERS * sum(columns * rows for columns, rows in MATRICES)
PREFILL_ROWS = 512


def matrices() -> Iterator[tuple[str, int, int]]:
    """Yield name, columns and rows of each."""
    for layer in range(LAYERS):
        for index, (columns, rows) in enumerate(MATRICES):
            yield f"w{layer}_{index}", columns, rows


def random_bytes(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(rows * columns).integers(0, 256, (rows, columns), np.uint8)


def open_onnxruntime(options: argparse.Namespace) -> tuple[Step, float]:
    """Make a session of ``MatMulNBits`` nodes that compute with 8-bit activations."""
    model = options.work / "matrices.onnx"
    if not model.is_file():
        write_onnx(model)
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    return lambda rows: session.run(None, {"x": rows}), NUM_WEIGHTS * (0.5 + 2 / GROUP)


def write_onnx(path: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    nodes, initial, last = [], [], "x"
    initial += [numpy_helper.from_array(np.array([value]), f"at{value}") for value in (0, 1)]
    for name, columns, rows in matrices():
        blocks = columns // GROUP
        packed = random_bytes(rows, columns // 2).reshape(rows, blocks, GROUP // 2)
        scales = np.full(rows * blocks, 0.2 / columns**0.5, np.float32)
        initial.append(numpy_helper.from_array(packed, name))
        initial.append(numpy_helper.from_array(scales, f"{name}_scale"))
        initial.append(numpy_helper.from_array(np.array([columns]), f"{name}_end"))
        cut = (last, "at0", f"{name}_end", "at1")
        nodes.append(helper.make_node("Slice", cut, (f"{name}_in",)))
        shape = {"K": columns, "N": rows, "bits": 4, "block_size": GROUP, "accuracy_level": 4}
        inputs = (f"{name}_in", name, f"{name}_scale")
        last = f"{name}_out"
        nodes.append(
            helper.make_node("MatMulNBits", inputs, (last,), domain="com.microsoft", **shape)
        )
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 896])
        for name in ("x", last)
    ]
    graph = helper.make_graph(nodes, "matrices", ends[:1], ends[1:], initial)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)


def open_torch(options: argparse.Namespace) -> tuple[Step, float]:
    """Pack INT8 weights, a scale a row, for oneDNN."""
    import torch

    torch.set_num_threads(options.threads)
    torch.backends.quantized.engine = "onednn"
    packed = []
    for _, columns, rows in matrices():
        weight = torch.from_numpy(random_bytes(rows, columns).view(np.int8) // 2)
        scales, zeros = (
            torch.full((rows,), 0.02 / columns**0.5),
            torch.zeros(rows, dtype=torch.long),
        )
        weight = torch._make_per_channel_quantized_tensor(weight, scales.double(), zeros, 0)
        packed.append((columns, torch.ops.quantized.linear_prepack(weight, None)))

    def step(rows: np.ndarray) -> object:
        last = torch.from_numpy(rows)
        for columns, weight in packed:
            last = torch.ops.quantized.linear_dynamic(last[:, :columns].contiguous(), weight)
        return last

    return step, float(NUM_WEIGHTS)


def open_openvino(options: argparse.Namespace) -> tuple[Step, float]:
    """Compile a model of 4-bit constants that are scaled at run time."""
    import openvino
    from openvino import opset13 as ops

    first = last = ops.parameter([-1, 896], np.float32)
    for _, columns, rows in matrices():
        shape = openvino.Shape([rows, columns // GROUP, GROUP])
        packed = random_bytes(rows, columns // 2).reshape(-1)
        tensor = openvino.Tensor(packed, shape, openvino.Type.u4)
        codes = openvino.op.Constant(tensor, shared_memory=False)
        zero = ops.constant(np.float16(8))
        scale = np.full((rows, columns // GROUP, 1), 0.2 / columns**0.5, np.float16)
        weight = ops.multiply(ops.subtract(ops.convert(codes, "f16"), zero), ops.constant(scale))
        weight = ops.convert(ops.reshape(weight, [rows, columns], False), "f32")
        last = ops.slice(last, [0], [columns], [1], [1])
        last = ops.matmul(last, weight, False, True)
    model = openvino.Model([last], [first], "matrices")
    settings = {"INFERENCE_NUM_THREADS": options.threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    return compiled, NUM_WEIGHTS * (0.5 + 2 / GROUP)


class InitParameters(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


def open_ggml(options: argparse.Namespace) -> tuple[Step, float]:
    """Build graphs over Q4_0 weights, as they lie in a file."""
    base, cpu = (
        ctypes.CDLL(str(options.libraries / f"libggml-{part}.so"), ctypes.RTLD_GLOBAL)
        for part in ("base", "cpu")
    )
    pointer, number, size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t
    base.ggml_init.argtypes, base.ggml_init.restype = (InitParameters,), pointer
    for name, kinds in {
        "ggml_new_tensor_2d": (pointer, ctypes.c_int, number, number),
        "ggml_view_2d": (pointer, pointer, number, number, size, size),
        "ggml_mul_mat": (pointer, pointer, pointer),
        "ggml_get_data": (pointer,),
        "ggml_new_graph": (pointer,),
        "ggml_build_forward_expand": (pointer, pointer),
        "ggml_free": (pointer,),
    }.items():
        function = getattr(base, name)
        function.argtypes, function.restype = kinds, pointer
    cpu.ggml_graph_compute_with_ctx.argtypes = (pointer, pointer, ctypes.c_int)
    cpu.ggml_cpu_init()
    context = base.ggml_init(InitParameters(NUM_WEIGHTS * 18 // 32 + (64 << 20), None, False))
    weights = []
    for _, columns, rows in matrices():
        weight = base.ggml_new_tensor_2d(context, 2, columns, rows)  # GGML_TYPE_Q4_0
        blocks = random_bytes(rows * columns // 32, 18)
        blocks[:, :2] = np.array([0.2 / columns**0.5], np.float16).view(np.uint8)
        ctypes.memmove(base.ggml_get_data(weight), blocks.ctypes.data, blocks.nbytes)
        weights.append((columns, rows, weight))

    def step(rows: np.ndarray) -> object:
        count = len(rows)
        room = InitParameters(len(weights) * (count * 12000 * 4 + 4096) + (256 << 20), None, False)
        scratch = base.ggml_init(room)
        last = base.ggml_new_tensor_2d(scratch, 0, 896, count)  # GGML_TYPE_F32
        ctypes.memmove(base.ggml_get_data(last), rows.ctypes.data, rows.nbytes)
        width = 896
        for columns, num_rows, weight in weights:
            part = base.ggml_view_2d(scratch, last, columns, count, width * 4, 0)
            last, width = base.ggml_mul_mat(scratch, weight, part), num_rows
        graph = base.ggml_new_graph(scratch)
        base.ggml_build_forward_expand(graph, last)
        cpu.ggml_graph_compute_with_ctx(scratch, graph, options.threads)
        return base.ggml_free(scratch)

    return step, NUM_WEIGHTS * 18 / 32


LIBRARIES = {
    "onnxruntime": open_onnxruntime,
    "torch": open_torch,
    "openvino": open_openvino,
    "ggml": open_ggml,
}


def best_seconds(step: Step, num_rows: int, repeat: int) -> float:
    rows = np.random.default_rng(0).standard_normal((num_rows, 896)).astype(np.float32)
    step(rows)
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        step(rows)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def own_bytes() -> int:
    """Return the memory that only this process has."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--work", type=Path, default=Path("/var/tmp"), help="for ONNX's model")
    parser.add_argument("--libraries", type=Path, help="folder of ggml's")
    options = parser.parse_args()
    before, began = own_bytes(), time.perf_counter()
    step, weight_bytes = LIBRARIES[options.library](options)
    opened = time.perf_counter() - began
    decode = best_seconds(step, 1, options.repeat)
    held = own_bytes() - before
    prefill = best_seconds(step, PREFILL_ROWS, max(2, options.repeat // 5))
    report = {
        "library": options.library,
        "open_seconds": round(opened, 2),
        "decode_ms": round(decode * 1000, 2),
        "decode_gigabytes_per_second": round(weight_bytes / decode / 1e9, 2),
        "prefill_tokens_per_second": round(PREFILL_ROWS / prefill, 1),
        "weight_bytes": int(weight_bytes),
        "own_bytes": held,
        "own_over_weights": round(held / weight_bytes, 2),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
