"""Modal: one server on a zse image, asleep while nobody asks.

    modal deploy app.py

Modal starts its own Python in the image; the image's entry point is left alone and started by the
hook below, which returns when the model is ready. So the address takes traffic only then.
"""

import subprocess
import time
import urllib.request

import modal

NAME = "zse-qwen"
IMAGE = "registry.example.com/acme/zse-qwen:1"
REGISTRY_SECRET = "registry-pull"  # holds REGISTRY_USERNAME and REGISTRY_PASSWORD
GPU = "L4"
CPU = None  # processors
MEMORY_MIB = None
ENVIRONMENT = {
    "ZSE_HOST": "0.0.0.0",
    "ZSE_DRAIN_SECONDS": "25",
    "PORT": "8000",
    "ZSE_PUBLIC": "1",
    "ZSE_MODEL": "/models/qwen.zse",
}
SECRETS = {}  # secret of the workspace -> variables that it holds
VOLUME = "zse-models"
BUCKET = None
BUCKET_SECRET = None
PORT = 8000
DRAIN_SECONDS = 30
COMMAND = ["/usr/bin/python3", "-I", "-S", "/opt/zse/boot.py"]


def mounts():
    """What is mounted at /models, for reading only."""
    if VOLUME:
        return {"/models": modal.Volume.from_name(VOLUME).with_mount_options(read_only=True)}
    secret = BUCKET_SECRET and modal.Secret.from_name(BUCKET_SECRET)
    bucket = BUCKET and modal.CloudBucketMount(**BUCKET, secret=secret, read_only=True)
    return {"/models": bucket} if bucket else {}


image = modal.Image.from_registry(
    IMAGE,
    secret=modal.Secret.from_name(REGISTRY_SECRET) if REGISTRY_SECRET else None,
    add_python="3.12",  # for Modal's runner
).entrypoint([])
app = modal.App(NAME)


@app.server(
    image=image,
    gpu=GPU,
    cpu=CPU,
    memory=MEMORY_MIB,
    env=ENVIRONMENT,
    secrets=[modal.Secret.from_name(name, required_keys=keys) for name, keys in SECRETS.items()],
    volumes=mounts(),
    port=PORT,
    target_concurrency=16,
    max_concurrency=64,  # above it: 429
    min_containers=0,
    max_containers=4,
    scaledown_window=300,
    startup_timeout=240,
    exit_grace_period=DRAIN_SECONDS,
    routing_region="us-east",
    unauthenticated=False,  # False: Modal-Key and Modal-Secret, or both as a bearer token
)
class Server:
    """The image's server as a child process."""

    @modal.enter()
    def start(self):
        """Start it and wait until the model is ready."""
        self.process = subprocess.Popen(COMMAND)
        url = f"http://127.0.0.1:{PORT}/health/ready"
        while self.process.poll() is None:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except OSError:  # a 503, while the model loads, is one as well
                time.sleep(0.02)
        raise RuntimeError(f"the server ended with code {self.process.returncode}")

    @modal.exit()
    def stop(self):
        """Let work in flight finish."""
        self.process.terminate()
        self.process.wait(DRAIN_SECONDS)
