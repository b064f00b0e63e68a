"""What the hot path may import, in a fresh process."""

import subprocess
import sys
from pathlib import Path

import pytest

from zse.settings import subprocess_environment

HEAVY = {
    "torch",
    "triton",
    "transformers",
    "fastapi",
    "pydantic",
    "numpy",
    "rich",
    "httpx",
    "boto3",
}
ROOT = str(Path(__file__).parents[2])


@pytest.mark.parametrize("module", ["zse.serve.app", "zse.serve.command_line", "zse.serve.boot"])
def test_importing_the_server_imports_nothing_heavy(module):
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    environment = subprocess_environment(PYTHONPATH=ROOT)
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert not set(output.stdout.split()) & HEAVY


def test_the_driver_is_woken_by_who_has_not_even_imported_what_reads_the_settings():
    code = "import sys, zse.serve.__main__; print(*sys.modules)"
    environment = subprocess_environment(PYTHONPATH=ROOT)
    output = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    imported = set(output.stdout.split())
    ours = {name for name in imported if name.partition(".")[0] == "zse"}
    assert ours == {
        "zse", "zse.device", "zse.device.early", "zse.environment", "zse.serve", "zse.serve.__main__"
    }  # fmt: skip
    late = {"typing", "re", "enum", "dataclasses", "pathlib", "ctypes", "threading", "contextlib"}
    assert not late & imported


def test_the_entry_point_imports_no_web_stack_before_it_has_bound():
    code = "import sys, zse.serve.command_line; print(*sys.modules)"
    environment = subprocess_environment(PYTHONPATH=ROOT)
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert not {"starlette", "uvicorn", "msgspec", "asyncio"} & set(output.stdout.split())


def test_a_container_that_is_given_no_flags_starts_without_what_reads_them():
    code = (
        "import sys, zse.serve.command_line as entry\n"
        "entry.start = lambda settings: print(*sys.modules)\n"
        "entry.run([])"
    )
    environment = subprocess_environment(PYTHONPATH=ROOT)
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert "zse.settings" in output.stdout.split()
    assert not {"argparse", "gettext", "shutil"} & set(output.stdout.split())


def test_the_http_server_comes_without_what_only_websockets_need():
    code = (
        "import sys; from zse.serve.http.server import HTTPServer\n"
        "HTTPServer(lambda: None, end_seconds=1)\n"
        "print(*sys.modules)"
    )
    environment = subprocess_environment(PYTHONPATH=ROOT)
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert not {"click", "uvicorn", "wsproto", "logging.config"} & set(output.stdout.split())


def test_a_model_of_this_machine_is_loaded_without_what_other_ways_to_serve_need():
    modules = "zse.engine.async_engine, zse.engine.loading, zse.text.template, zse.stream.loader"
    code = f"import sys, zse.backends.gpu.open, {modules}; print(*sys.modules)"
    environment = subprocess_environment(PYTHONPATH=ROOT)
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    loaded = set(output.stdout.split())
    assert not {"http.client", "urllib.request", "zse.format.writer", "zse.device.cgroup"} & loaded
    assert not {"zse.device.gpu", "zse.device.probe", "zse.stream.shards"} & loaded
    assert not [name for name in loaded if name.startswith("zse.store")]


def test_a_server_on_a_cpu_answers_where_nothing_heavy_can_be_imported(start_command, bytes_model):
    absent = ("torch", "numpy", "triton", "transformers", "safetensors")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "from zse.serve.__main__ import main; sys.exit(main())"
    )
    server = start_command("-c", code, str(bytes_model), "--device", "cpu", "--port", "0")
    server.wait_for_line("ready")
    question = {"model": "bytes", "messages": [{"role": "user", "content": "hi"}]}
    answer = server.http.post("/v1/chat/completions", json={**question, "max_tokens": 4})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] in range(1, 5)
