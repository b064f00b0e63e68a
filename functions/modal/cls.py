"""Modal: a class that is woken from a memory snapshot, with the GPU's memory in it.

A restore that fails leaves no server behind; the hook after it then starts one.
"""

import subprocess
import time
import urllib.request

import modal

REGISTRY_SECRET = "registry-pull"  # holds REGISTRY_USERNAME and REGISTRY_PASSWORD
SECRETS = {}  # secret of the workspace -> variables that it holds
VOLUME = None
BUCKET = {
    "bucket_name": "models",
    "bucket_endpoint_url": "https://account.r2.cloudflarestorage.com",
}
BUCKET_SECRET = "models-bucket"
PORT = 8000
STARTUP_SECONDS = 240
COMMAND = ["/usr/bin/python3", "-I", "-S", "/opt/zse/boot.py"]


def mounts():
    """What is mounted at /models, for reading only."""
    if VOLUME:
        return {"/models": modal.Volume.from_name(VOLUME).with_mount_options(read_only=True)}
    secret = BUCKET_SECRET and modal.Secret.from_name(BUCKET_SECRET)
    bucket = BUCKET and modal.CloudBucketMount(**BUCKET, secret=secret, read_only=True)
    return {"/models": bucket} if bucket else {}


image = modal.Image.from_registry(
    "registry.example.com/acme/zse-qwen:1",
    secret=modal.Secret.from_name(REGISTRY_SECRET) if REGISTRY_SECRET else None,
    add_python="3.12",  # for Modal's runner
).entrypoint([])
app = modal.App("zse-qwen")


@app.cls(
    image=image,
    gpu="L4",
    cpu=None,
    memory=None,
    env={
        "ZSE_HOST": "0.0.0.0",
        "ZSE_DRAIN_SECONDS": "25",
        "PORT": "8000",
        "ZSE_PUBLIC": "1",
        "ZSE_MODEL": "/models/qwen.zse",
    },
    secrets=[modal.Secret.from_name(name, required_keys=keys) for name, keys in SECRETS.items()],
    volumes=mounts(),
    min_containers=0,
    max_containers=4,
    scaledown_window=300,
    startup_timeout=STARTUP_SECONDS,
    timeout=3600,
    enable_memory_snapshot=True,
    experimental_options={"enable_gpu_snapshot": True},
)
@modal.concurrent(max_inputs=64, target_inputs=16)
class Server:
    """The image's server as a child process."""

    @modal.enter(snap=True)
    def start(self):
        """Start it; the snapshot is taken when the model is ready."""
        self.process = subprocess.Popen(COMMAND)
        self._wait()

    @modal.enter(snap=False)
    def wake(self):
        """Start it again when the restore lost it."""
        if self.process.poll() is not None:
            self.process = subprocess.Popen(COMMAND)
        self._wait()

    def _wait(self):
        url = f"http://127.0.0.1:{PORT}/health/ready"
        while self.process.poll() is None:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except OSError:  # a 503, while the model loads, is one as well
                time.sleep(0.02)
        raise RuntimeError(f"the server ended with code {self.process.returncode}")

    @modal.web_server(PORT, startup_timeout=STARTUP_SECONDS, requires_proxy_auth=True)
    def web(self):
        """The port is open already: the hooks above waited for it."""

    @modal.exit()
    def stop(self):
        """Let work in flight finish."""
        self.process.terminate()
        self.process.wait(30)
