"""A whole start on a GPU, with the stub driver in its place: what was imported by the time it serves.

The stub's kernels compute nothing, so no answer is asked for.
"""

import pytest
import stub_libcuda
from sample_packs import write_stub_pack

from zse.quantize.locate import locate_model
from zse.settings import Settings

HEAVY = {"torch", "triton", "transformers", "bitsandbytes", "numpy", "fastapi", "pydantic"}
WORDY = {"rich", "httpx", "boto3", "huggingface_hub", "safetensors"}
OF_OTHER_MODELS = (
    "zse.kernels.experts",
    "zse.kernels.route",
    "zse.kernels.delta.launch",
    "zse.kernels.delta.variants",
    "zse.backends.gpu.experts",
    "zse.backends.gpu.mixture",
    "zse.backends.gpu.delta",
    "zse.backends.gpu.state_pool",
)
# Writes down what is imported when the process ends; it ends as it always does.
SERVER = """
import os, pathlib, sys
path, leave = pathlib.Path(sys.argv.pop()), os._exit
def note():
    path.write_text(" ".join(sys.modules))
def noting(code):
    note()
    leave(code)
os._exit = noting
from zse.serve.__main__ import main
code = main()
note()
sys.exit(code)
"""


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    return write_stub_pack(tmp_path_factory.mktemp("kernels") / "sm_90.zkp")


def test_a_server_on_a_gpu_is_ready_without_anything_heavy(pack, start_command, tmp_path):
    model = locate_model("tiny", Settings(cache_dir=tmp_path), quant="int4")
    noted = tmp_path / "imported"
    server = start_command(
        "-c", SERVER, str(model), "--device", "cuda", "--kernels", str(pack), "--port", "0",
        str(noted),
        LD_LIBRARY_PATH=str(stub_libcuda.build().parent),
        ZSE_STUB_TOTAL=str(4 << 30),
    )  # fmt: skip
    server.wait_for_line("ready")
    assert server.http.get("/health/ready").status_code == 200
    assert server.stop() == 0
    modules = noted.read_text().split()
    imported = {name.partition(".")[0] for name in modules}
    assert {"zse", "starlette", "ctypes"} <= imported
    assert imported & (HEAVY | WORDY) == set()
    assert [name for name in modules if name.startswith(OF_OTHER_MODELS)] == []
