"""What can be measured: a model in a plain process, or an image in a container."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zse.deploy.measure.runners import RUNNERS, first_that_works
from zse.deploy.measure.shown_gpu import gpu_binds
from zse.deploy.measure.start import HOST, Subject
from zse.models.builtin import BUILTIN_MODELS
from zse.oci.image.base import read_base
from zse.oci.image.python import host_architecture
from zse.oci.image.source import open_image
from zse.oci.image.unpack import unpack
from zse.oci.image.unpacked import UnpackedImage
from zse.oci.layout.index import with_kind
from zse.store.location import is_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RUNNER_ORDER = ("runc", "crun", "bwrap", "unshare+chroot", "unpacked layers")
"""Without the daemons of Docker and Podman, whose own time would be measured."""


def is_image(name: str) -> bool:
    """Whether a name means an image: a layout, an archive, or a reference with a host or a tag."""
    if with_kind(name).startswith("oci:"):
        return True
    if name in BUILTIN_MODELS or is_address(name) or name.endswith(".zse"):
        return False
    if Path(name).expanduser().exists():
        return name.endswith(".tar")
    first, slash, _ = name.partition("/")
    has_host = bool(slash) and ("." in first.strip(".") or ":" in first or first == "localhost")
    return has_host or ":" in name.rpartition("/")[2] or "@sha256:" in name


def model_subject(model: str, *, device: str) -> Subject:
    """Return the server as a person starts it: ``python -m zse.serve MODEL``."""
    command = [sys.executable, "-m", "zse.serve", model, "--host", HOST]
    extra = ["--device", device] if device else []
    return Subject(
        name=model,
        how="process",
        command=lambda port: [*command, "--port", str(port), *extra],
        is_told_when=True,
    )


@contextmanager
def opened_image(
    name: str,
    scratch: Path,
    *,
    device: str,
    runner: str,
    auth_file: Path,
    say: Callable[[str], None],
) -> Iterator[Subject]:
    """Unpack an image and find what starts it here.

    Args:
        name: ``oci:DIR[:TAG]``, a tar file of a layout, or a reference, which is pulled.
        scratch: An empty folder for everything that is written.
        device: auto, cpu or cuda[:N]; empty leaves it to the image.
        runner: The only runner to try; empty tries several.
        auth_file: Registry credentials.
        say: Hears what is done.

    Raises:
        ImageError: It cannot be read, unpacked, or started by anything here.
    """
    with open_image(_place(name), auth_file=auth_file) as source:
        if source.repository[0]:
            say(f"pulling {source.name} (not measured)")
        platform = f"linux/{host_architecture()}"
        image = read_base(source, platform=platform, cache=scratch / "blobs")
        say("unpacking (not measured)")
        unpack(map(image.fetch, image.layers), scratch / "rootfs")
    config = {**(image.config.get("config") or {})}
    unpacked = UnpackedImage(
        layout=scratch / "layout",
        tag="",
        rootfs=scratch / "rootfs",
        config=config,
        scratch=scratch,
        binds={} if device == "cpu" else gpu_binds(scratch / "rootfs"),
    )
    how = first_that_works(unpacked, runner, say, order=RUNNER_ORDER)
    variables = {"ZSE_HOST": HOST, **({"ZSE_DEVICE": device} if device else {})}
    yield Subject(
        name=name,
        how=how,
        command=lambda port: RUNNERS[how](unpacked, [], {**variables, "PORT": str(port)}),
    )


def _place(name: str) -> str:
    """Return the name as images are opened by; an archive that is absent is none the less one."""
    if name.endswith(".tar") and not name.startswith("tar:"):
        return f"tar:{Path(name).expanduser()}"
    return with_kind(name)
