"""How fast objects come and go, beside a plain parallel download and boto3's upload, same run.

Without --endpoint it starts the S3 server of the system tests (Debian packages, root), whose work
takes CPUs of this machine: what counts is the ratio. Runs take turns and medians are compared.
The last line is one JSON object.

    python scripts/bench/store.py --gib 1 --repeat 5
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from machine import machine_facts

from zse.settings import load_settings
from zse.store import fetch, open_store, put_file
from zse.store.base import CHUNK_BYTES
from zse.store.remote import READERS
from zse.store.s3_client import client_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
NEEDED_RATIO = 0.8


class PlainDownload:
    """What the store is held against: the same ranges by http.client, and nothing else."""

    def __init__(self, url: str, size_bytes: int, path: Path) -> None:
        self.parts, self.size_bytes, self.path = urlsplit(url), size_bytes, path
        self.buffer = bytearray(size_bytes)

    def to_memory(self) -> None:
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(self.read_every, range(READERS)))

    def to_file(self) -> None:
        self.to_memory()
        with self.path.open("wb") as file:
            file.write(self.buffer)
            os.fsync(file.fileno())

    def to_file_checked(self) -> None:
        self.to_file()
        hashlib.sha256(self.buffer).hexdigest()

    def read_every(self, worker: int) -> None:
        connection = http.client.HTTPConnection(self.parts.netloc)
        view = memoryview(self.buffer)
        for start in range(worker * CHUNK_BYTES, self.size_bytes, READERS * CHUNK_BYTES):
            end = min(start + CHUNK_BYTES, self.size_bytes)
            where = {"Range": f"bytes={start}-{end - 1}"}
            connection.request("GET", f"{self.parts.path}?{self.parts.query}", headers=where)
            answer = connection.getresponse()
            assert answer.status == 206
            while start < end:
                start += answer.readinto(view[start:end])
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where files are; /dev/shm leaves the disk out")
    parser.add_argument("--endpoint", help="a server that the AWS variables have keys for")
    parser.add_argument("--bucket", help="an existing bucket of it; otherwise one is made")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="zse-bench-", dir=options.folder)
        folder = Path(stack.enter_context(temporary))
        stack.enter_context(serving(options, folder))
        bucket = options.bucket or f"bench-{secrets.token_hex(4)}"
        if not options.bucket:
            client_of(load_settings().aws, load_settings().proxies).create_bucket(Bucket=bucket)
        report = measure(folder, f"s3://{bucket}/bench.zse", options)
    print(json.dumps(report))


@contextlib.contextmanager
def serving(options: argparse.Namespace, folder: Path) -> Iterator[None]:
    if options.endpoint:
        os.environ["AWS_ENDPOINT_URL_S3"] = options.endpoint
        yield
        return
    sys.path.insert(0, str(ROOT / "scripts" / "services"))
    import ceph_s3

    with ceph_s3.running(folder / "server") as server:
        os.environ.update(server.environment())
        yield


def measure(folder: Path, url: str, options: argparse.Namespace) -> dict[str, Any]:
    source, target = folder / "source", folder / "target"
    size_bytes = int(options.gib * (1 << 30))
    with source.open("wb") as file:
        for _ in range(0, size_bytes, CHUNK_BYTES):
            file.write(os.urandom(CHUNK_BYTES))
        file.truncate(size_bytes)
    client = client_of(load_settings().aws, load_settings().proxies)
    bucket, _, key = url.removeprefix("s3://").partition("/")
    put_file(source, url, load_settings())
    signed = client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": key})
    plain = PlainDownload(signed, size_bytes, target)

    def drain(place: str) -> None:
        assert sum(map(len, open_store(place, load_settings()).read_chunks())) == size_bytes

    cases: dict[str, dict[str, Callable[[], object]]] = {
        "to memory": {
            "plain": plain.to_memory,
            "s3": lambda: drain(url),
            "https": lambda: drain(signed),
        },
        "to file": {
            "plain": plain.to_file,
            "plain, checked": plain.to_file_checked,
            "s3": lambda: fetch(url, target, load_settings()),
            "https": lambda: fetch(signed, target, load_settings()),
        },
        "from file": {
            "plain": lambda: client.upload_file(str(source), bucket, "other"),
            "s3": lambda: put_file(source, url, load_settings()),
        },
    }
    rows = {
        case: run_in_turn(case, ways, size_bytes, options.repeat) for case, ways in cases.items()
    }
    peaks = {gib: peak_bytes(folder, url, gib) for gib in (options.gib / 4, options.gib)}
    print(
        "peak memory of zse push: " + ", ".join(f"{g} GiB {b >> 20} MiB" for g, b in peaks.items())
    )
    return {
        **machine_facts(),
        "bench": "store",
        "size_bytes": size_bytes,
        "needed_ratio": NEEDED_RATIO,
        "cases": rows,
        "push_peak_bytes": {str(gib): peak for gib, peak in peaks.items()},
    }


def run_in_turn(
    case: str, ways: dict[str, Callable[[], object]], size_bytes: int, repeat: int
) -> dict[str, Any]:
    """Time each way ``repeat`` times, taking turns; the first turn does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeat + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    row = {}
    for name, median in medians.items():
        ratios = [a / b for a, b in zip(seconds["plain"][1:], seconds[name][1:], strict=True)]
        row[name] = {
            "mb_per_s": round(size_bytes / median / 1e6, 1),
            "ratio": round(statistics.median(ratios), 3),
        }
        print(f"{case:10} {name:14} {row[name]['mb_per_s']:8.1f} MB/s  {row[name]['ratio']:.2f}x")
    return row


PUSH = """
import sys
from zse.cli import run
assert run(["push", *sys.argv[1:]]) == 0
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak_bytes(folder: Path, url: str, gib: float) -> int:
    """Return the peak memory of a process that pushes a file of this size."""
    path = folder / "part"
    with path.open("wb") as file:
        file.truncate(int(gib * (1 << 30)))
    command = [sys.executable, "-c", PUSH, str(path), url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.run(command, env=environment, stdout=PIPE, stderr=DEVNULL, check=True)
    return int(child.stdout) * 1024


if __name__ == "__main__":
    main()
