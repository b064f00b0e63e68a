"""What really gets imported, seen from a child process: lint and contracts see only the source."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "triton", "transformers", "bitsandbytes", "numpy"}
WEB_AND_WORDS = {"fastapi", "pydantic", "rich", "httpx", "boto3", "huggingface_hub"}
COLD_MODULES = [
    "zse",
    "zse.cli",
    "zse.backends.cpu.backend",
    "zse.backends.gpu.open",
    "zse.deploy.registry",
    "zse.device.open",
    "zse.device.cuda.gpu",
    "zse.engine.llm",
    "zse.engine.core",
    "zse.errors",
    "zse.format",
    "zse.kernels",
    "zse.kernels.catalog",
    "zse.kernels.find",
    "zse.kv",
    "zse.models",
    "zse.oci",
    "zse.serve.__main__",
    "zse.serve.app",
    "zse.settings",
    "zse.store",
    "zse.text",
]


def imported_top_level_names(module: str) -> set[str]:
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize("module", COLD_MODULES)
def test_cold_module_imports_nothing_heavy(module: str) -> None:
    loaded = imported_top_level_names(module)
    assert not loaded & HEAVY
    assert not loaded & WEB_AND_WORDS
