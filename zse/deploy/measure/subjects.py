"""What can be measured: a model in a plain process, or an image in a container."""

from __future__ import annotations

import sys
import tarfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zse.deploy.measure.runners import RUNNERS, first_that_works
from zse.deploy.measure.start import HOST, Subject
from zse.errors import NotFoundError
from zse.models.builtin import BUILTIN_MODELS
from zse.oci.errors import LayoutError
from zse.oci.image.base import base_from_layout, base_from_registry
from zse.oci.image.python import host_architecture
from zse.oci.image.unpack import unpack
from zse.oci.image.unpacked import UnpackedImage
from zse.oci.layout.index import with_kind
from zse.oci.registry.client import open_registry
from zse.oci.registry.reference import parse_reference
from zse.store.location import is_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.oci.image.base import Base

RUNNER_ORDER = ("runc", "bwrap", "unshare+chroot", "unpacked layers")
"""Without the daemons of Docker and Podman, whose own time would be measured."""
_DRIVER = "libcuda.so.1"


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
    with _read_image(name, scratch, auth_file, say) as image:
        say("unpacking (not measured)")
        unpack(image, scratch / "rootfs")
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


@contextmanager
def _read_image(
    name: str, scratch: Path, auth_file: Path, say: Callable[[str], None]
) -> Iterator[Base]:
    wanted = f"linux/{host_architecture()}"
    name = with_kind(name).removeprefix("tar:")
    if name.startswith("oci:"):
        yield base_from_layout(name.removeprefix("oci:"), platform=wanted)
    elif name.endswith(".tar"):
        yield base_from_layout(str(_layout_of(Path(name).expanduser(), scratch)), platform=wanted)
    else:
        reference = parse_reference(name)
        say(f"pulling {reference} (not measured)")
        blobs = scratch / "layout" / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        with open_registry(reference, auth_file) as registry:
            yield base_from_registry(registry, platform=wanted, cache=blobs)


def _layout_of(archive: Path, scratch: Path) -> Path:
    """Unpack the tar file of a layout: blobs and two documents, nothing else is taken."""
    layout = scratch / "layout"
    (layout / "blobs" / "sha256").mkdir(parents=True)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                folder, _, last = name.rpartition("/")
                is_blob = folder == "blobs/sha256" and last.isalnum()
                source = tar.extractfile(member) if member.isreg() else None
                if source is not None and (is_blob or name in ("index.json", "oci-layout")):
                    with (layout / name).open("xb") as stream:
                        while data := source.read(1 << 20):
                            stream.write(data)
    except FileNotFoundError:
        raise NotFoundError(f"{archive} does not exist") from None
    except (tarfile.TarError, IsADirectoryError, EOFError, zlib.error) as error:
        raise LayoutError(f"{archive} is not an image archive: {error}") from error
    return layout


def gpu_binds(rootfs: Path) -> dict[str, str]:
    """Return what of this machine's GPUs a container must be shown: devices and the driver."""
    devices = {str(path): str(path) for path in sorted(Path("/dev").glob("nvidia*"))}
    if not devices:
        return {}
    places = [*Path("/usr/lib").glob(f"*-linux-gnu/{_DRIVER}"), Path("/usr/lib64") / _DRIVER]
    driver = next((place for place in places if place.exists()), None)
    folder = next(rootfs.glob("usr/lib/*-linux-gnu"), rootfs / "usr/lib")
    if driver is not None:
        devices[f"/{folder.relative_to(rootfs)}/{_DRIVER}"] = str(driver.resolve())
    return devices
