"""Who may read the environment and who may import by name: a few, by name, and nobody else."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "zse"

READS_THE_ENVIRONMENT = {"environ", "environb", "getenv", "putenv"}
EDGES = {
    "cli",  # the command line
    "serve/command_line.py",  # what images start
    "api",  # its other names
    "engine/llm.py",  # and the Python API, where nobody hands settings in
    "engine/batching.py",
    "engine/orchestrator.py",
    "quantize/convert.py",
    "quantize/locate.py",
    "quantize/huggingface/load.py",
}
MAKES_CHILDREN = {
    "cli/build_image.py",  # hands its own variables to --secret NAME=env:VARIABLE
    "deploy/measure/start.py",
    "kernels/build/pool.py",
    "kernels/find.py",
    "oci/python/wheels.py",
}
IMPORTS_BY_NAME = {
    "__init__.py",  # public names that are imported when they are asked for (PEP 562)
    "cli/__init__.py",
    "format/__init__.py",
    "store/__init__.py",
    "models/families/__init__.py",  # a table of modules of its own package
    "deploy/registry.py",
    "kernels/build/worker.py",  # the kernel that a job names, in a child process
    "engine/llama_cpp.py",
    "quantize/hub.py",  # packages of others, which may be absent
    "quantize/huggingface/bnb.py",
    "serve/http/lazy_handlers.py",  # modules of routes, by their first request
    "text/kitoken_module.py",
    "text/tools/__init__.py",
}


FIELDS = {ast.Name: "id", ast.Attribute: "attr", ast.alias: "name"}


@cache
def names_by_module() -> dict[str, frozenset[str]]:
    """Return what each module names, as a name, an attribute or an import."""
    return {
        str(path.relative_to(SOURCES)): frozenset(
            getattr(node, FIELDS[type(node)])
            for node in ast.walk(ast.parse(path.read_text()))
            if type(node) in FIELDS
        )
        for path in SOURCES.rglob("*.py")
    }


def users_of(names: set[str]) -> set[str]:
    """Return the modules that name one of these."""
    named = names_by_module().items()
    return {module for module, used in named if used & names} - {"settings.py"}


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (READS_THE_ENVIRONMENT, {"environment.py"}),
        ({"load_settings"}, EDGES),
        ({"subprocess_environment"}, MAKES_CHILDREN),
        ({"import_module", "__import__"}, IMPORTS_BY_NAME),
    ],
    ids=["environ", "load_settings", "subprocess_environment", "import_module"],
)
def test_only_those_who_may_do(names: set[str], allowed: set[str]) -> None:
    found = users_of(names)
    covered = {path for path in found if path in allowed or path.partition("/")[0] in allowed}
    assert found - covered == set()
    assert {each for each in allowed if not any(path.startswith(each) for path in found)} == set()


def test_a_module_that_does_would_be_seen() -> None:
    assert "quantize/convert.py" in users_of({"load_settings"})
    assert users_of({"os"})
