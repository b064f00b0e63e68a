"""The main job through real services: what ``scripts/demo --full`` runs.

The built-in model is converted into a real S3 server, an image is built from there and pushed to
a real registry, pulled back by skopeo, unpacked by umoci, started by runc (or bubblewrap), and
asked a question by the openai client. Needs root on Debian: what is missing is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "services"))

import ceph_s3  # noqa: E402
import oci_registry  # noqa: E402
import service_packages  # noqa: E402
from service_packages import ServiceError, find_command  # noqa: E402
from service_process import LOOPBACK, free_ports  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

QUESTION = "What is the capital of France?"
EXPECTED = "Paris"
BUCKET = "models"
MODEL_URL = f"s3://{BUCKET}/tiny.zse"
READY_SECONDS = 180
STOP_SECONDS = 40


class DemoError(RuntimeError):
    """A step did not do what it should; the text says which and how."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the started image said."""

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


def run(command: list[str], environment: dict[str, str]) -> str:
    """Run a command; its words go to our standard error, its data is returned."""
    say("    $ " + " ".join(Path(command[0]).name if i == 0 else a for i, a in enumerate(command)))
    done = subprocess.run(
        command, check=False, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    if done.returncode:
        raise DemoError(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout.decode()


def zse(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "zse", *arguments]


def make_bucket(environment: dict[str, str]) -> None:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL_S3"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name=environment["AWS_REGION"],
        config=Config(s3={"addressing_style": "path"}),
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()


def pull(reference: str, digest: str, work: Path, environment: dict[str, str]) -> Path:
    """Pull with skopeo and unpack with umoci; return the bundle.

    The copy keeps every digest and is compared with what was built. umoci 0.4 cannot read zstd, so
    the layers are then stored as gzip, by skopeo again.
    """
    skopeo = find_command("skopeo")
    pulled = f"oci:{work / 'pulled'}:demo"
    keep = ["--preserve-digests", "--dest-oci-accept-uncompressed-layers"]
    source = ["--src-tls-verify=false", f"docker://{reference}"]
    run([skopeo, "copy", "-q", *keep, *source, pulled], environment)
    raw = run([skopeo, "inspect", "--raw", pulled], environment)
    found = "sha256:" + hashlib.sha256(raw.encode()).hexdigest()
    if found != digest:
        raise DemoError(f"pulled {found}, built {digest}")
    gzip = ["--dest-compress-format=gzip", "--dest-compress-level=1"]
    run([skopeo, "copy", "-q", *gzip, pulled, f"oci:{work / 'gzip'}:demo"], environment)
    bundle = work / "bundle"
    run(
        [find_command("umoci"), "unpack", "--image", f"{work / 'gzip'}:demo", str(bundle)],
        environment,
    )
    return bundle


def runc_command(bundle: Path, work: Path, variables: dict[str, str]) -> list[str]:
    """Write umoci's config anew so that runc can start it here, and return the command.

    The network is the host's, cgroups and limits are left alone (they may not be ours to change),
    the root is read-only. Entry point, user, working folder and environment stay the image's own.
    """
    path = bundle / "config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    process, linux = config["process"], config["linux"]
    process["terminal"] = False
    process.pop("rlimits", None)
    process["env"] = with_variables(process["env"], variables)
    linux.pop("resources", None)
    linux["namespaces"] = [item for item in linux["namespaces"] if item["type"] != "network"]
    config["root"]["readonly"] = True
    mounts = [m for m in config["mounts"] if m["destination"] not in ("/sys/fs/cgroup", "/tmp")]
    temporary = {
        "destination": "/tmp",
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "nodev"],
    }
    config["mounts"] = [*mounts, temporary]
    path.write_text(json.dumps(config))
    name = f"zse-demo-{secrets.token_hex(4)}"
    state = str(work / "runc")
    return [find_command("runc"), "--root", state, "run", "--bundle", str(bundle), name]


def bwrap_command(bundle: Path, _work: Path, variables: dict[str, str]) -> list[str]:
    """Return the command that starts the bundle's entry point under bubblewrap."""
    process = json.loads((bundle / "config.json").read_text())["process"]
    command = [find_command("bwrap"), "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    command += ["--ro-bind", str(bundle / "rootfs"), "/", "--proc", "/proc", "--dev", "/dev"]
    command += ["--tmpfs", "/tmp", "--die-with-parent", "--chdir", process["cwd"], "--clearenv"]
    for item in with_variables(process["env"], variables):
        name, _, value = item.partition("=")
        command += ["--setenv", name, value]
    return [*command, *process["args"]]


def with_variables(environment: list[str], variables: dict[str, str]) -> list[str]:
    kept = [item for item in environment if item.partition("=")[0] not in variables]
    return [*kept, *(f"{name}={value}" for name, value in variables.items())]


RUNNERS = {"runc": runc_command, "bwrap": bwrap_command}


@contextlib.contextmanager
def started(runner: str, bundle: Path, work: Path) -> Iterator[tuple[str, float]]:
    """Start the image; yield its address and the seconds until it was ready; stop it at the end."""
    port = free_ports(1)[0]
    url = f"http://{LOOPBACK}:{port}"
    variables = {"PORT": str(port), "ZSE_HOST": LOOPBACK}
    log_path = work / f"{runner}.log"
    command = [find_command("setpriv"), "--pdeathsig", "TERM"]
    command += RUNNERS[runner](bundle, work, variables)
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
        stop(process, runner)


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
        time.sleep(0.05)
    raise DemoError(f"the image was not ready after {READY_SECONDS} s")


def stop(process: subprocess.Popen[bytes], runner: str) -> None:
    """Ask it to drain and end, as an orchestrator would."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            say(f"    {runner}: no end after SIGTERM, killing it")
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


def demo(work: Path, runner: str) -> dict[str, Any]:
    """Run every step; return the figures that are printed at the end."""
    with step("install what is missing"):
        say(f"    installed: {' '.join(service_packages.install()) or 'nothing'}")
    with contextlib.ExitStack() as stack:
        with step("start a real S3 server (Ceph) and a real registry on loopback"):
            server = stack.enter_context(ceph_s3.running(work / "s3"))
            registry = stack.enter_context(oci_registry.running(work / "registry"))
            environment = {**os.environ, **server.environment()}
            make_bucket(environment)
        with step("convert the built-in model into the S3 server"):
            run(zse("convert", "tiny", "-o", MODEL_URL, "--quant", "int8"), environment)
        with step("build an image around it and push it to the registry"):
            reference = f"{registry}/zse/tiny:demo"
            build = ["build-image", MODEL_URL, "--name", reference, "--push", "--json"]
            image = json.loads(run(zse(*build), environment))
        with step("pull it back with skopeo and unpack it with umoci"):
            bundle = pull(reference, image["digest"], work, environment)
        with step(f"start its entry point with {runner} and ask: {QUESTION}"):
            url, ready_seconds = stack.enter_context(started(runner, bundle, work))
            answer = ask(url, ready_seconds)
    return {
        "question": QUESTION,
        "answer": answer.text,
        "runner": runner,
        "digest": image["digest"],
        "image_mb": round((image["size_bytes"] - image["model_size_bytes"]) / 1e6, 1),
        "model_mb": round(image["model_size_bytes"] / 1e6, 1),
        "ready_seconds": round(answer.ready_seconds, 2),
        "server_timing": answer.server_timing,
    }


def report(figures: dict[str, Any]) -> None:
    print(f"question:   {figures['question']}")
    print(f"answer:     {figures['answer']}")
    print(f"image:      {figures['image_mb']} MB, and {figures['model_mb']} MB of model")
    print(f"digest:     {figures['digest']}")
    print(f"started by: {figures['runner']}, ready after {figures['ready_seconds']} s")
    print(f"ledger:     {figures['server_timing'].replace(', ', chr(10) + ' ' * 12)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=ROOT / ".demo" / "full", help="scratch folder")
    parser.add_argument("--runner", choices=list(RUNNERS), default="runc")
    parser.add_argument("--keep", action="store_true", help="leave the scratch folder")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    work = arguments.work.absolute() / secrets.token_hex(4)
    work.mkdir(parents=True)
    try:
        figures = demo(work, arguments.runner)
    except (DemoError, ServiceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        if not arguments.keep:
            shutil.rmtree(work, ignore_errors=True)
    if arguments.json:
        print(json.dumps(figures))
    else:
        report(figures)
    if EXPECTED not in figures["answer"]:
        print(f"error: the answer does not hold {EXPECTED!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
