"""The device layer stands on ctypes and the standard library, seen from a child process."""

from __future__ import annotations

import subprocess
import sys

CODE = "import sys; before = set(sys.modules); import zse.device.cuda.gpu; print(*set(sys.modules) - before)"


def test_importing_the_device_layer_imports_only_the_standard_library() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    names = {name.split(".")[0] for name in run.stdout.split()}
    assert "ctypes" in names
    assert names - set(sys.stdlib_module_names) == {"zse"}


def test_importing_the_device_layer_loads_no_driver() -> None:
    code = "import zse.device.cuda.gpu; print('libcuda' in open('/proc/self/maps').read())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
