"""The digest over the kernels' sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zse.kernels import sources

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def copied_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "norm").mkdir()
    (tmp_path / "variant.py").write_text("# facts\n")
    (tmp_path / "norm" / "variants.py").write_text("# variants\n")
    (tmp_path / "norm" / "triton_kernel.py").write_text("# kernel\n")
    (tmp_path / "norm" / "reference.py").write_text("# reference\n")
    monkeypatch.setattr(sources, "__file__", str(tmp_path / "sources.py"))
    return tmp_path


def test_the_digest_changes_with_kernels_and_variants_and_with_nothing_else(
    copied_sources: Path,
) -> None:
    digest = sources.source_digest.__wrapped__
    before = digest()
    assert len(before) == 64
    (copied_sources / "norm" / "reference.py").write_text("# another reference\n")
    assert digest() == before
    (copied_sources / "norm" / "triton_kernel.py").write_text("# another kernel\n")
    changed = digest()
    assert changed != before
    (copied_sources / "norm" / "triton_kernel.py").rename(copied_sources / "norm" / "triton_b.py")
    assert digest() != changed


def test_the_digest_is_empty_where_no_sources_are_installed(copied_sources: Path) -> None:
    (copied_sources / "norm" / "triton_kernel.py").unlink()
    assert sources.source_digest.__wrapped__() == ""
