"""The catalog: every variant once, and a digest that changes with the kernels."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from zse.kernels import catalog
from zse.kernels.variant import TARGET_CONSTANTS, Variant

VARIANTS = catalog.all_variants()


def test_every_folder_brings_variants_and_no_key_stands_twice() -> None:
    prefixes = {variant.key.partition(".")[0] for variant in VARIANTS}
    assert prefixes == set(catalog.FOLDERS)
    assert len({variant.key for variant in VARIANTS}) == len(VARIANTS)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.key)
def test_a_variant_names_a_source_file_and_leaves_the_targets_constants_alone(
    variant: Variant,
) -> None:
    spec = importlib.util.find_spec(variant.kernel.module)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).name.startswith("triton_")
    assert f"def {variant.kernel.function}(" in Path(spec.origin).read_text()
    assert not {name for name, _ in variant.constants} & set(TARGET_CONSTANTS)


def test_the_catalog_is_read_without_torch_and_triton() -> None:
    code = (
        "import sys; from zse.kernels.catalog import all_variants, source_digest;"
        "all_variants(); source_digest();"
        "print(*{'torch', 'triton', 'numpy', 'rich'} & sys.modules.keys())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


@pytest.fixture
def copied_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "norm").mkdir()
    (tmp_path / "variant.py").write_text("# facts\n")
    (tmp_path / "norm" / "variants.py").write_text("# variants\n")
    (tmp_path / "norm" / "triton_kernel.py").write_text("# kernel\n")
    (tmp_path / "norm" / "reference.py").write_text("# reference\n")
    monkeypatch.setattr(catalog, "__file__", str(tmp_path / "catalog.py"))
    return tmp_path


def test_the_digest_changes_with_kernels_and_variants_and_with_nothing_else(
    copied_sources: Path,
) -> None:
    digest = catalog.source_digest.__wrapped__
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
    assert catalog.source_digest.__wrapped__() == ""
