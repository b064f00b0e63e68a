"""Replicas of a zse server as actors of Ray Serve, which starts and stops them as requests come.

    serve run ray_app:app        # where Ray runs; ZSE_MODEL and other variables say what is served

An actor has one server in a process of its own: the GPU's memory and the server's signals are that
process's, Ray's are the actor's. After IDLE_SECONDS without requests there is no actor and no GPU
in use; the next request starts one and waits for it.
"""

import os
import subprocess
import sys
import tempfile
import time

import httpx
from ray import serve
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

COMMAND = [sys.executable, "-m", "zse.serve", "--host", "127.0.0.1", "--port", "0"]
COMMAND += ["--log-format", "json", "--log-level", "info"]
STARTUP_SECONDS = 240
DRAIN_SECONDS = 30
IDLE_SECONDS = 300
NUM_GPUS = 1
OF_ONE_HOP = {"connection", "content-length", "host", "keep-alive", "te", "trailer"}
OF_ONE_HOP |= {"transfer-encoding", "upgrade", "proxy-authorization", "proxy-connection"}


@serve.deployment(
    ray_actor_options={"num_cpus": 1, "num_gpus": NUM_GPUS},
    max_ongoing_requests=64,
    max_queued_requests=256,
    health_check_period_s=5,
    health_check_timeout_s=10,
    graceful_shutdown_timeout_s=DRAIN_SECONDS,
    autoscaling_config={
        "min_replicas": 0,
        "max_replicas": 4,
        "target_ongoing_requests": 16,
        "upscale_delay_s": 0,
        "metrics_interval_s": 1,
        "look_back_period_s": 2,
        "downscale_delay_s": IDLE_SECONDS,
        "downscale_to_zero_delay_s": IDLE_SECONDS,
    },
)
class Replica:
    """A server, and the way to it."""

    def __init__(self):
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the actor lives
        self.process = subprocess.Popen(COMMAND, stderr=self.log, start_new_session=True)
        self.client = httpx.AsyncClient(base_url=self._wait(), timeout=None)

    def _wait(self):
        """Return where the server listens, once its model is ready."""
        deadline = time.monotonic() + STARTUP_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            for line in os.pread(self.log.fileno(), 1 << 20, 0).decode().splitlines():
                if '"message": "ready"' in line:
                    return line.partition('"url": "')[2].partition('"')[0]
            time.sleep(0.01)
        self.process.kill()
        raise RuntimeError(os.pread(self.log.fileno(), 1 << 16, 0).decode()[-4000:])

    async def check_health(self):
        (await self.client.get("/health/live", timeout=5)).raise_for_status()

    async def __call__(self, request: Request) -> Response:
        headers = [(k, v) for k, v in request.headers.items() if k not in OF_ONE_HOP]
        url = httpx.URL(path=request.url.path, query=request.url.query.encode())
        body = await request.body()
        asked = self.client.build_request(request.method, url, headers=headers, content=body)
        answer = await self.client.send(asked, stream=True)
        kept = {k: v for k, v in answer.headers.items() if k not in OF_ONE_HOP}
        closing = BackgroundTask(answer.aclose)
        return StreamingResponse(answer.aiter_raw(), answer.status_code, kept, background=closing)

    def __del__(self):
        self.process.terminate()
        try:
            self.process.wait(DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()


app = Replica.bind()
