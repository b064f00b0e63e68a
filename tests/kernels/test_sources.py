"""The digest over the kernels' sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from zse.kernels import sources


@pytest.fixture
def copied_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "kernels"
    (root / "norm" / "triton").mkdir(parents=True)
    (root / "variant.py").write_text("# facts\n")
    (root / "norm" / "variants.py").write_text("# variants\n")
    (root / "norm" / "triton" / "kernel.py").write_text("# kernel\n")
    (root / "norm" / "reference.py").write_text("# reference\n")
    monkeypatch.setattr(sources, "__file__", str(root / "sources.py"))
    return root


def test_the_digest_changes_with_kernels_and_variants_and_with_nothing_else(
    copied_sources: Path,
) -> None:
    digest = sources.source_digest.__wrapped__
    before = digest()
    assert len(before) == 64
    (copied_sources / "norm" / "reference.py").write_text("# another reference\n")
    assert digest() == before
    (copied_sources / "norm" / "triton" / "kernel.py").write_text("# another kernel\n")
    changed = digest()
    assert changed != before
    (copied_sources / "norm" / "triton" / "kernel.py").rename(
        copied_sources / "norm" / "triton" / "b.py"
    )
    assert digest() != changed


def test_the_digest_is_empty_where_no_sources_are_installed(copied_sources: Path) -> None:
    (copied_sources / "norm" / "triton" / "kernel.py").unlink()
    assert sources.source_digest.__wrapped__() == ""


def test_whatever_the_sources_import_is_a_source_too() -> None:
    root = Path(sources.__file__).parent.parent
    covered = {path for pattern in sources.SOURCE_PATTERNS for path in root.glob(pattern)}
    found = set()
    for path in covered:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("zse."):
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                files = {root.parent / f"{name.replace('.', '/')}.py" for name in names}
                found |= {file for file in files if file.is_file()}
    assert root / "format" / "nf4.py" in found
    # What decides no instruction of a kernel.
    assert found - covered == {root / "errors.py", root / "records.py"}
