"""Entry points as modules, and free ports for what they start."""

import importlib.util
import socket
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def load_entry_point():
    """Import a file below ``functions`` as a module of its own."""

    def load(name: str):
        spec = importlib.util.spec_from_file_location(
            "entry_" + Path(name).stem, ROOT / "functions" / name
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def free_port():
    """Return a port that nobody listens on."""

    def find() -> int:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            return sock.getsockname()[1]

    return find


@pytest.fixture(scope="session")
def serve_tiny():
    """The command that serves the built-in model, in place of the image's entry point."""

    def command(port: int) -> list[str]:
        flags = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
        return [sys.executable, "-m", "zse.serve", "tiny", *flags]

    return command
