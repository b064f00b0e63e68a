"""The image for GPUs as it is shipped, on a machine without one: it holds what serving imports, and
says in one line what is missing. Packages and wheels are fetched, so the test needs a network."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from sample_packs import sample_pack

from zse.deploy.measure.runners import RUNNERS, first_that_works
from zse.oci.errors import LockError
from zse.oci.image.base import read_base
from zse.oci.image.build import build_image
from zse.oci.image.layers import MODEL_PATH
from zse.oci.image.options import BuildOptions, BuiltImage
from zse.oci.image.source import open_image
from zse.oci.image.unpack import unpack
from zse.oci.image.unpacked import UnpackedImage
from zse.oci.layout.layer import Compression
from zse.oci.recipe import load_recipe, recipe_folder
from zse.quantize.locate import locate_model
from zse.settings import load_settings

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has a GPU"),
]

EVERYTHING = """
import sys
sys.path[:0] = ["/opt/zse/app", "/opt/zse/site-packages"]
import importlib, pkgutil, zse
left_out = {"zse.__main__", "zse.format.as_torch"}
names = [module.name for module in pkgutil.walk_packages(zse.__path__, "zse.")]
for name in sorted(set(names) - left_out):
    importlib.import_module(name)
print(len(names), *[name for name in ("torch", "triton", "numpy") if name in sys.modules])
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[BuiltImage, UnpackedImage]:
    """The image with the built-in model and a pack of no kernels, unpacked."""
    work = tmp_path_factory.mktemp("cuda")
    pack = work / "sm_90.zkp"
    pack.write_bytes(sample_pack("sm_90"))
    recipe = load_recipe(recipe_folder("cuda"))
    options = BuildOptions(
        name="zse:1",
        # The developer's own cache: wheels and layers are keyed by their digests.
        cache_dir=Path(os.environ.get("HOME", "/root")) / ".cache" / "zse" / "images",
        model=locate_model("tiny", load_settings(), quant="int8"),
        kernels={"sm_90": pack},
        output=f"oci:{work / 'image'}",
        compression=Compression.GZIP,
    )
    recipe = replace(recipe, kernels=replace(recipe.kernels, gpu=("sm_90",)))
    try:
        image = build_image(recipe, options, print)
    except LockError:  # the mirror has moved on
        image = build_image(
            recipe, replace(options, is_lock_updated=True, locks=work / "locks"), print
        )
    with open_image(f"oci:{work / 'image'}:1", auth_file=Path("/none")) as source:
        base = read_base(source, platform="linux/amd64", cache=work)
        unpack(map(base.fetch, base.layers), work / "rootfs")
    unpacked = UnpackedImage(
        layout=work / "image",
        tag="1",
        rootfs=work / "rootfs",
        config=base.config["config"],
        scratch=work,
    )
    return image, unpacked


def start(image: UnpackedImage, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = RUNNERS[first_that_works(image, "", print)](image, list(words), variables)
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def test_it_is_a_tenth_of_what_it_may_be(built):
    image, _ = built
    assert image.size_bytes - image.model_size_bytes < 60_000_000


def test_it_imports_all_that_it_holds_and_neither_torch_nor_numpy(built):
    done = start(built[1], "python3", "-I", "-S", "-c", EVERYTHING)
    assert done.returncode == 0, done.stderr[-3000:]
    count, *heavy = done.stdout.split()
    assert int(count) > 100
    assert heavy == []


def test_it_holds_no_source_of_a_kernel_and_no_command(built):
    code = built[1].rootfs / "opt" / "zse" / "app" / "zse"
    assert (code / "kernels" / "packs" / "sm_90.zkp").is_file()
    assert not list(code.glob("kernels/**/triton/*"))
    assert not (code / "cli").exists()


def test_without_a_gpu_it_ends_with_ten_and_says_what_to_do(built):
    done = start(built[1], PORT="0", ZSE_HOST="127.0.0.1")
    assert done.returncode == 10
    assert "no CUDA driver" in done.stdout + done.stderr
    assert "--gpus all" in done.stdout + done.stderr


def test_asked_for_the_cpu_it_answers_on_it(built):
    script = (
        "import sys; sys.path[:0] = ['/opt/zse/app', '/opt/zse/site-packages']; import zse;"
        f"llm = zse.LLM('/{MODEL_PATH}', device='cpu');"
        "print(llm.chat('What is the capital of France?').text, 'torch' in sys.modules)"
    )
    done = start(built[1], "python3", "-I", "-S", "-c", script)
    assert "Paris" in done.stdout, done.stderr[-3000:]
    assert done.stdout.endswith("False\n")


def test_byte_code_is_of_the_images_own_python_and_is_used(built):
    image, unpacked = built
    script = (
        "import sys, platform, importlib.util as u; sys.path[:0] = ['/opt/zse/app']; import zse;"
        "data = open(u.cache_from_source(zse.__file__), 'rb').read();"
        "print(platform.python_version(), data[:4] == u.MAGIC_NUMBER, data[4])"
    )
    done = start(unpacked, "python3", "-I", "-S", "-c", script)
    # 1: never compared with its source.
    assert done.stdout.split()[-3:] == [image.platforms[0].python, "True", "1"], done.stderr
    assert image.platforms[0].warnings == ()
