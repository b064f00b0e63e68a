"""A container's start to its first streamed token, by runtimes that start a bundle.

Takes the root of an image that was unpacked before, as a node has it when a container is started,
and shows it a model and this machine's GPU as NVIDIA's container toolkit does. Time counts from the
runtime's own exec:

    python scripts/bench/container_start.py ROOT 7b.zse --device cuda --runners runc,crun

Runtimes that do not work here are named and left out. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from functools import partial
from pathlib import Path

from cold_start import kv_gib, read_through
from machine import machine_facts
from timed_server import Starts, TimedServer, measure_starts, spread, zse_server

from zse.deploy.measure.runners import RUNNERS, first_that_works
from zse.deploy.measure.shown_gpu import gpu_binds
from zse.deploy.measure.start import HOST
from zse.format import ZSEReader
from zse.models.families import read_header
from zse.oci.image.unpacked import RunnerError, UnpackedImage

ENTRY = ("python3", "-I", "-S", "/opt/zse/boot.py")
USER = "65532:65532"
MODEL = "/models/model.zse"
ENVIRONMENT = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
    "LANG=C.UTF-8",
)
"""What the recipe ``images/cuda`` says; a recipe's image has the same in its configuration."""
CONTEXT_TOKENS = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path, help="folder of an unpacked image")
    parser.add_argument("model", type=Path, help="a .zse file that is shown to it")
    parser.add_argument("--device", default="cuda", help="cpu or cuda")
    parser.add_argument("--runners", default="runc,crun,unshare+chroot")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--small-cache", action="store_true", help="4,096 tokens of KV, no more")
    options = parser.parse_args()
    read_through(options.model)
    with tempfile.TemporaryDirectory(prefix="zse-container-") as folder:
        image = image_of(options, Path(folder))
        found = {name: measure(name, image, options) for name in options.runners.split(",")}
    facts = {"subject": "container_start", **machine_facts(), "num_runs": options.repeat}
    print(json.dumps({**facts, "model": options.model.name, "runners": found}))


def image_of(options: argparse.Namespace, scratch: Path) -> UnpackedImage:
    binds = {} if options.device == "cpu" else gpu_binds(options.root)
    return UnpackedImage(
        layout=scratch,
        tag="",
        rootfs=options.root.resolve(),
        config={"Entrypoint": list(ENTRY), "Env": list(ENVIRONMENT), "User": USER},
        scratch=scratch,
        binds={**binds, MODEL: str(options.model.resolve())},
    )


def measure(
    name: str, image: UnpackedImage, options: argparse.Namespace
) -> dict[str, object] | None:
    """Measure one runtime; None where it does not work here."""
    try:
        first_that_works(image, name, partial(print, flush=True))
    except RunnerError:
        return None
    with ZSEReader(options.model) as reader:
        spec = read_header(reader.header.model_config)
    arguments = [MODEL]
    if options.small_cache:
        gib = kv_gib(spec, options.device.partition(":")[0])
        arguments += [f"--max-context={min(CONTEXT_TOKENS, spec.max_position)}"]
        arguments += [f"--kv-gib={gib:.4f}"]
    variables = {"ZSE_HOST": HOST, "ZSE_DEVICE": options.device}
    asked = zse_server(options.model, device=options.device)  # asked like any other of ours
    server = TimedServer(
        name=name,
        command=lambda port: RUNNERS[name](
            image, [*ENTRY, *arguments], {**variables, "PORT": str(port)}
        ),
        live_path=asked.live_path,
        ready_path=asked.ready_path,
        path=asked.path,
        body=asked.body,
    )
    found = measure_starts(server, repeat=options.repeat, vocabulary=spec.vocab_size)
    return told(name, found)


def told(name: str, found: Starts) -> dict[str, object]:
    """Print medians, least and most of a runtime's starts; return them."""
    result: dict[str, object] = {
        phase: spread([start.milestones[phase] for start in found.starts])
        for phase in found.starts[0].milestones
    }
    result["ledger_end_ms_p50"] = {
        phase: round(
            statistics.median(s.ledger[phase].end_ms for s in found.starts if phase in s.ledger), 1
        )
        for phase in found.starts[-1].ledger
    }
    print(f"{name}: {json.dumps(result)}", flush=True)
    return result


if __name__ == "__main__":
    main()
