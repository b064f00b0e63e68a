"""The main job on a bare machine: what ``scripts/demo`` runs.

The built-in model is converted, put into storage (a folder), built into an image (a folder), taken
apart by tar, started in a root of its own by what this machine has, and asked a question by the
openai client. The model and the image stay, to play with; a later run uses the model again and the
builder's cache of layers. ``scripts/demo --full`` does the same through real services.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
from zse import __version__  # noqa: E402
from zse.deploy.measure.runners import RUNNERS, first_that_works  # noqa: E402
from zse.errors import ZSEError  # noqa: E402
from zse.format.reader import ZSEReader  # noqa: E402
from zse.oci.image.unpacked import UnpackedImage  # noqa: E402
from zse.settings import load_settings  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

QUESTION = "What is the capital of France?"
EXPECTED = "Paris"
LOOPBACK = "127.0.0.1"
TAG = "zse-demo"
READY_SECONDS = 180
STOP_SECONDS = 40


class DemoError(RuntimeError):
    """A step did not do what it should; the text says which and how."""


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Two folders: what a demo makes for good, and what it needs while it runs."""

    kept: Path
    scratch: Path

    @property
    def model(self) -> Path:
        return self.kept / "tiny.zse"

    @property
    def image(self) -> Path:
        return self.kept / "image"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the started image said, and how long it took to be ready."""

    text: str
    server_timing: str
    ready_seconds: float


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(words: str) -> Iterator[None]:
    say(f"==> {words}")
    started = time.monotonic()
    yield
    say(f"    {time.monotonic() - started:.1f} s")


def zse(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of zse; its words are shown as they come, its data is returned."""
    say(f"    $ zse {' '.join(arguments)}")
    return subprocess.run(
        [sys.executable, "-m", "zse", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=ROOT,
    )


def store_model(work: Workplace) -> Path:
    """Convert the built-in model, unless an earlier run did, and put it into storage."""
    from zse.store import put_file

    stored = work.scratch / "storage" / work.model.name
    if is_current(work.model):
        say(f"    {shown(work.model)} is there from an earlier run")
    elif zse("convert", "tiny", "-o", str(work.model), "--quant", "int8", "--force").returncode:
        raise DemoError("the conversion failed")
    put_file(work.model, str(stored), load_settings())
    return stored


def is_current(model: Path) -> bool:
    """Whether the file is there and this version of zse wrote it."""
    if not model.is_file():
        return False
    with ZSEReader(model) as reader:
        return reader.header.provenance.get("tool") == f"zse {__version__}"


def build(model: Path, work: Workplace) -> dict[str, Any]:
    """Build the image into a layout, which is made anew: its layers are in the builder's cache.

    The lock pins Debian packages that the mirror may have replaced since; the demo then resolves
    anew, into a lock of its own.
    """
    layout = work.image
    shutil.rmtree(layout, ignore_errors=True)
    command = ["build-image", str(model), "--name", f"zse-demo:{TAG}", "--output", f"oci:{layout}"]
    command += ["--compression", "zstd" if shutil.which("zstd") else "gzip", "--json"]
    done = zse(*command)
    if done.returncode:
        say("    trying again with packages resolved anew")
        done = zse(*command, "--update-lock", "--locks", str(work.scratch / "locks"))
    if done.returncode:
        raise DemoError("the image could not be built")
    built: dict[str, Any] = json.loads(done.stdout)
    return built


def unpack(layout: Path, work: Path, digest: str) -> UnpackedImage:
    """Take the image apart with tar, after checking every digest; nothing of zse is used."""
    index = json.loads((layout / "index.json").read_bytes())
    images = [item["digest"] for item in index["manifests"] if "artifactType" not in item]
    if images != [digest]:
        raise DemoError(f"the layout does not list {digest}")
    manifest = json.loads(checked_blob(layout, digest).read_bytes())
    rootfs = work / "rootfs"
    rootfs.mkdir()
    for layer in manifest["layers"]:
        kind = layer["mediaType"].rpartition("tar")[2]
        flag = {"+zstd": ["--zstd"], "+gzip": ["--gzip"], "": []}[kind]
        blob = checked_blob(layout, layer["digest"])
        subprocess.run(["tar", "-x", "-p", *flag, "-C", rootfs, "-f", blob], check=True)
    config = json.loads(checked_blob(layout, manifest["config"]["digest"]).read_bytes())
    return UnpackedImage(
        layout=layout, tag=TAG, rootfs=rootfs, config=config["config"], scratch=work
    )


def checked_blob(layout: Path, digest: str) -> Path:
    path = layout / "blobs" / "sha256" / digest.removeprefix("sha256:")
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if f"sha256:{found}" != digest:
        raise DemoError(f"blob {digest} has digest sha256:{found}")
    return path


@contextlib.contextmanager
def started(runner: str, image: UnpackedImage) -> Iterator[tuple[str, float]]:
    """Start the image; yield its address and the seconds until it was ready; stop it at the end."""
    port = free_port()
    url = f"http://{LOOPBACK}:{port}"
    command = RUNNERS[runner](image, [], {"PORT": str(port), "ZSE_HOST": LOOPBACK})
    log_path = image.scratch / "server.log"
    began = time.monotonic()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        wait_ready(url, process)
        yield url, time.monotonic() - began
    except (DemoError, OSError) as error:
        tail = log_path.read_text(errors="replace")[-3000:]
        raise DemoError(f"{error}; the end of its log:\n{tail}") from error
    finally:
        stop(process)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        port: int = listener.getsockname()[1]
        return port


def wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/health/ready", timeout=5).close()
            return
        except urllib.error.HTTPError as error:
            error.close()  # 503 while it loads
        except OSError:
            pass
        if process.poll() is not None:
            raise DemoError(f"the image's entry point ended with {process.returncode}")
        time.sleep(0.02)
    raise DemoError(f"the image was not ready after {READY_SECONDS} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to drain and end, as an orchestrator would."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            say("    no end after SIGTERM, killing it")
            process.kill()
            process.wait()


def ask(url: str, ready_seconds: float) -> Answer:
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        reply = client.chat.completions.with_raw_response.create(
            model="default",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=32,
        )
        text = reply.parse().choices[0].message.content or ""
        timing = reply.headers.get("server-timing", "")
    return Answer(text=text.strip(), server_timing=timing, ready_seconds=ready_seconds)


def demo(work: Workplace, wanted_runner: str) -> dict[str, Any]:
    """Run every step; return the figures that are printed at the end."""
    with step("convert the built-in model and put it into storage"):
        model = store_model(work)
    with step("build an image around it, without Docker"):
        built = build(model, work)
    with step("unpack the image with tar"):
        image = unpack(work.image, work.scratch, built["digest"])
    with step("look for a way to start it in a root of its own"):
        runner = first_that_works(image, wanted_runner, say)
    asking = step(f"start its entry point with {runner} and ask: {QUESTION}")
    with asking, started(runner, image) as (url, ready_seconds):
        answer = ask(url, ready_seconds)
    return {
        "question": QUESTION,
        "answer": answer.text,
        "runner": runner,
        "digest": built["digest"],
        "image_mb": round((built["size_bytes"] - built["model_size_bytes"]) / 1e6, 1),
        "model_mb": round(built["model_size_bytes"] / 1e6, 1),
        "ready_seconds": round(answer.ready_seconds, 2),
        "server_timing": answer.server_timing,
        "kept": {"model": str(work.model), "image": str(work.image)},
    }


def shown(path: Path) -> str:
    """Return a path as one would type it here."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def play_on(model: Path, image: Path) -> str:
    """Return the lines that a newcomer may type next."""
    zse_command, tar = shown(Path(sys.executable).with_name("zse")), shown(image) + ".tar"
    return f"""
kept:       {shown(model)} (the model), {shown(image)} (the image)
play on:
  {zse_command} serve {shown(model)}
  {zse_command} chat {shown(model)}
  {zse_command} image inspect oci:{shown(image)}:{TAG}
run the image (podman takes the same lines):
  {zse_command} build-image {shown(model)} --name zse-demo:{TAG} --output tar:{tar} --force
  docker load -i {tar}
  docker run --rm -p 8000:8000 zse-demo:{TAG}
remove it:
  scripts/demo --clean"""


def clean(work: Workplace) -> None:
    """Remove what demos keep and leave, and the folder if nothing else is in it."""
    for path in (work.model, *work.kept.glob("scratch-*"), *work.kept.glob("image*")):
        say(f"removing {shown(path)}")
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        work.kept.rmdir()


def report(figures: dict[str, Any], seconds: float) -> None:
    print(f"question:   {figures['question']}")
    print(f"answer:     {figures['answer']}")
    print(f"image:      {figures['image_mb']} MB, and {figures['model_mb']} MB of model")
    print(f"digest:     {figures['digest']}")
    print(f"started by: {figures['runner']}, ready after {figures['ready_seconds']} s")
    print(f"ledger:     {figures['server_timing'].replace(', ', chr(10) + ' ' * 12)}")
    print(f"whole demo: {seconds:.0f} s")
    if kept := figures.get("kept"):
        print(play_on(Path(kept["model"]), Path(kept["image"])))


def run_demo(
    summary: str, runners: Iterable[str], demo: Callable[[Workplace, str], dict[str, Any]]
) -> int:
    """Read the command line, run a demo with scratch of its own, report; return the exit code."""
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--work", type=Path, default=ROOT / ".demo", help="folder for everything")
    parser.add_argument("--runner", choices=list(runners), default="", help="use this one only")
    parser.add_argument("--keep", action="store_true", help="leave the scratch folder")
    parser.add_argument("--clean", action="store_true", help="remove what demos kept, and end")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    kept = arguments.work.absolute()
    work = Workplace(kept=kept, scratch=kept / f"scratch-{secrets.token_hex(4)}")
    if arguments.clean:
        clean(work)
        return 0
    work.scratch.mkdir(parents=True)
    began = time.monotonic()
    try:
        figures = demo(work, arguments.runner)
    except (ZSEError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        if not arguments.keep:
            shutil.rmtree(work.scratch, ignore_errors=True)
    if arguments.json:
        print(json.dumps(figures))
    else:
        report(figures, time.monotonic() - began)
    if EXPECTED not in figures["answer"]:
        print(f"error: the answer does not hold {EXPECTED!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_demo(__doc__.splitlines()[0], RUNNERS, demo))
