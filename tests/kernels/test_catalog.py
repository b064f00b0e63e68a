"""The catalog: every variant once, read without anything heavy."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from zse.kernels import catalog
from zse.kernels.variant import TARGET_CONSTANTS, Variant

VARIANTS = catalog.all_variants()


def test_every_folder_with_variants_is_in_the_catalog_and_no_key_stands_twice() -> None:
    root = Path(catalog.__file__).parent
    folders = {path.parent.name for path in root.glob("*/variants.py")}
    assert {variant.key.partition(".")[0] for variant in VARIANTS} == folders
    assert len(VARIANTS) == sum(len(folder.VARIANTS) for folder in catalog.FOLDERS)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.key)
def test_a_variant_names_a_source_file_and_leaves_the_targets_constants_alone(
    variant: Variant,
) -> None:
    spec = importlib.util.find_spec(variant.kernel.module)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).parent.name == "triton"
    assert f"def {variant.kernel.function}(" in Path(spec.origin).read_text()
    assert not {name for name, _ in variant.constants} & set(TARGET_CONSTANTS)


def test_the_catalog_is_read_without_torch_and_triton() -> None:
    code = (
        "import sys; from zse.kernels.catalog import all_variants; all_variants();"
        "print(*{'torch', 'triton', 'numpy', 'rich'} & sys.modules.keys())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
