"""The main job through real services: what ``scripts/demo --full`` runs.

The built-in model is converted into a real S3 server, an image is built from there and pushed to
a real registry, pulled back by skopeo, unpacked by umoci, started by runc (or bubblewrap), and
asked a question by the openai client. Needs root on Debian: what is missing is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "services")]

import ceph_s3  # noqa: E402
import oci_registry  # noqa: E402
import service_packages  # noqa: E402
from demo_job import QUESTION, DemoError, ask, run_demo, say, started, step  # noqa: E402
from service_packages import find_command  # noqa: E402

from zse.deploy.measure.runners import first_that_works  # noqa: E402
from zse.oci.image.unpacked import RunnerError, UnpackedImage  # noqa: E402

if TYPE_CHECKING:
    from ceph_s3 import S3Server
    from demo_job import Answer, Workplace

BUCKET = "models"
MODEL_URL = f"s3://{BUCKET}/tiny.zse"
TAG = "demo"
RUNNER_ORDER = ("runc", "bwrap")


def run(command: list[str], environment: dict[str, str]) -> str:
    """Run a command; its words go to our standard error, its data is returned."""
    say(f"    $ {Path(command[0]).name} {' '.join(command[1:])}")
    done = subprocess.run(
        command,
        check=False,
        env=environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    if done.returncode:
        raise DemoError(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout.decode()


def zse(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "zse", *arguments]


def make_bucket(server: S3Server) -> None:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()


def build_and_push(reference: str, work: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Build the image from the model in S3 and push it.

    The lock pins Debian packages that the mirror may have replaced since; then they are resolved
    anew, into a lock of the demo's own.
    """
    command = zse("build-image", MODEL_URL, "--name", reference, "--push", "--json")
    try:
        text = run(command, environment)
    except DemoError:
        say("    trying again with packages resolved anew")
        text = run([*command, "--update-lock", "--locks", str(work / "locks")], environment)
    image: dict[str, Any] = json.loads(text)
    return image


def pull(reference: str, digest: str, work: Path, environment: dict[str, str]) -> UnpackedImage:
    """Pull with skopeo and unpack with umoci.

    The copy keeps every digest and is compared with what was built. umoci 0.4 cannot read zstd, so
    the layers are then stored as gzip, by skopeo again.
    """
    skopeo = find_command("skopeo")
    pulled = f"oci:{work / 'pulled'}:{TAG}"
    keep = ["--preserve-digests", "--dest-oci-accept-uncompressed-layers"]
    source = ["--src-tls-verify=false", f"docker://{reference}"]
    run([skopeo, "copy", "-q", *keep, *source, pulled], environment)
    raw = run([skopeo, "inspect", "--raw", pulled], environment)
    found = "sha256:" + hashlib.sha256(raw.encode()).hexdigest()
    if found != digest:
        raise DemoError(f"pulled {found}, built {digest}")
    layout, bundle = work / "gzip", work / "bundle"
    gzip = ["--dest-compress-format=gzip", "--dest-compress-level=1"]
    run([skopeo, "copy", "-q", *gzip, pulled, f"oci:{layout}:{TAG}"], environment)
    run(
        [find_command("umoci"), "unpack", "--image", f"{layout}:{TAG}", str(bundle)],
        environment,
    )
    config = json.loads(run([skopeo, "inspect", "--config", pulled], environment))
    return UnpackedImage(
        layout=layout, tag=TAG, rootfs=bundle / "rootfs", config=config["config"], scratch=work
    )


def working_runner(image: UnpackedImage, wanted: str) -> str:
    """Return the first of runc and bubblewrap that starts anything on this machine."""
    for name in [wanted] if wanted else RUNNER_ORDER:
        with contextlib.suppress(RunnerError):
            return first_that_works(image, name, say)
    raise DemoError("neither runc nor bubblewrap can start the image here")


def ask_or_explain(url: str, ready_seconds: float) -> Answer:
    """Ask; a failure becomes an error that the server's log is shown with."""
    import openai

    try:
        return ask(url, ready_seconds)
    except openai.OpenAIError as error:
        raise DemoError(f"the server did not answer: {error}") from error


def demo(workplace: Workplace, wanted_runner: str) -> dict[str, Any]:
    """Run every step; return the figures that are printed at the end. Nothing is kept."""
    work = workplace.scratch
    with step("install what is missing"):
        say(f"    installed: {' '.join(service_packages.install()) or 'nothing'}")
    with contextlib.ExitStack() as stack:
        with step("start a real S3 server (Ceph) and a real registry on loopback"):
            server = stack.enter_context(ceph_s3.running(work / "s3"))
            registry = stack.enter_context(oci_registry.running(work / "registry"))
            environment = {**os.environ, **server.environment()}
            make_bucket(server)
        with step("convert the built-in model into the S3 server"):
            run(zse("convert", "tiny", "-o", MODEL_URL, "--quant", "int8"), environment)
        with step("build an image around it and push it to the registry"):
            reference = f"{registry}/zse/tiny:{TAG}"
            built = build_and_push(reference, work, environment)
        with step("pull it back with skopeo and unpack it with umoci"):
            image = pull(reference, built["digest"], work, environment)
        with step(f"start its entry point in a root of its own and ask: {QUESTION}"):
            runner = working_runner(image, wanted_runner)
            with started(runner, image) as (url, ready_seconds):
                answer = ask_or_explain(url, ready_seconds)
    return {
        "question": QUESTION,
        "answer": answer.text,
        "runner": runner,
        "digest": built["digest"],
        "image_mb": round((built["size_bytes"] - built["model_size_bytes"]) / 1e6, 1),
        "model_mb": round(built["model_size_bytes"] / 1e6, 1),
        "ready_seconds": round(answer.ready_seconds, 2),
        "server_timing": answer.server_timing,
    }


if __name__ == "__main__":
    sys.exit(run_demo(__doc__.splitlines()[0], RUNNER_ORDER, demo))
