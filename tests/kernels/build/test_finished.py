"""A kernel is compiled again when anything that decides its code has changed, and only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from zse.kernels.build.finished import FinishedKernels, sources_digest

if TYPE_CHECKING:
    from pathlib import Path

JOB = {
    "key": "sample.scale[BLOCK=128]",
    "module": "kernels.scale.triton.scale",
    "function": "scale",
    "arguments": [["inputs", "*fp32", True]],
    "constants": [["BLOCK", 128]],
    "target_constants": {"PDL": True},
    "num_warps": 4,
    "num_stages": 3,
    "number": 90,
    "output": "/tmp/a",
}
FACTS = {"entry": "scale", "shared_bytes": 1024}
CODE = b"\x7fELF\n\n\0code\n"
VERSIONS = {"triton": "3.9.0", "ptxas": "12.9.86"}


def write_sources(root: Path, *, helper: str = "VALUE = 1", stranger: str = "") -> Path:
    files = {
        "kernels/__init__.py": "",
        "kernels/scale/__init__.py": "",
        "kernels/scale/triton/scale.py": "import triton\nfrom kernels.shared import helper\n",
        "kernels/shared/__init__.py": "",
        "kernels/shared/helper.py": f"{helper}\n",
        "kernels/other/triton/other.py": f"{stranger}\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def kernels(tmp_path: Path) -> FinishedKernels:
    roots = (write_sources(tmp_path / "first"),)
    made = FinishedKernels(folder=tmp_path / "finished", versions=VERSIONS, roots=roots)
    made.keep(JOB, FACTS, CODE)
    return made


def changed(kernels: FinishedKernels, **more: Any) -> FinishedKernels:
    return FinishedKernels(
        **{"folder": kernels.folder, "versions": VERSIONS, "roots": kernels.roots, **more}
    )


def test_what_is_kept_is_found_wherever_its_output_was(kernels: FinishedKernels) -> None:
    assert kernels.find({**JOB, "output": "/elsewhere"}) == (FACTS, CODE)


@pytest.mark.parametrize(
    "change",
    [
        {"constants": [["BLOCK", 64]]},
        {"number": 80},
        {"num_warps": 8},
        {"num_stages": 2},
        {"function": "other"},
        {"target_constants": {"PDL": False}},
        {"arguments": [["inputs", "*fp32", False]]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_variant_or_target_is_another_kernel(
    kernels: FinishedKernels, change: dict[str, Any]
) -> None:
    assert kernels.find({**JOB, **change}) is None


@pytest.mark.parametrize("name", VERSIONS)
def test_another_compiler_compiles_again(kernels: FinishedKernels, name: str) -> None:
    assert changed(kernels, versions={**VERSIONS, name: "99"}).find(JOB) is None


def test_a_change_of_what_a_kernel_imports_compiles_it_again(
    kernels: FinishedKernels, tmp_path: Path
) -> None:
    roots = (write_sources(tmp_path / "second", helper="VALUE = 2"),)
    assert changed(kernels, roots=roots).find(JOB) is None


def test_a_change_of_another_kernel_compiles_nothing_again(
    kernels: FinishedKernels, tmp_path: Path
) -> None:
    roots = (write_sources(tmp_path / "third", stranger="VALUE = 3"),)
    assert changed(kernels, roots=roots).find(JOB) == (FACTS, CODE)


@pytest.mark.parametrize("position", [0, 70, -1])
def test_a_damaged_file_is_compiled_again(kernels: FinishedKernels, position: int) -> None:
    (path,) = kernels.folder.iterdir()
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    assert kernels.find(JOB) is None
    path.write_bytes(b"")
    assert kernels.find(JOB) is None
    kernels.keep(JOB, FACTS, CODE)
    assert kernels.find(JOB) == (FACTS, CODE)


def test_the_sources_of_a_kernel_of_zse_include_its_helpers_and_no_other_kernel() -> None:
    from pathlib import Path

    import zse

    root = Path(zse.__file__).parent.parent
    digests = {
        name: sources_digest(f"zse.kernels.{name}", (root,))
        for name in ("norm.triton.kernel", "embed.triton.kernel", "triton.parts")
    }
    assert len(set(digests.values())) == 3


def test_a_source_that_is_no_python_has_a_digest_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "nul.py").write_bytes(b"\0")
    assert sources_digest("broken", (tmp_path,)) != sources_digest("nul", (tmp_path,))
