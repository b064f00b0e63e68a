"""How fast a .zse file reaches the GPU: cached, from a cold disk, from an S3 server on loopback.

Each row stands beside its peer in the same run: a copy from a mapping, a bare read of the disk
with O_DIRECT, a bare parallel GET. The first run of each is left out, since on a virtual machine
it measures memory that is touched for the first time. The last line is one JSON object.

    PYTHONPATH=. python scripts/bench/loader.py --folder /dev/shm --disk /var/tmp
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader_peers import direct_read, link_copy, pageable_copy, plain_get
from loader_sweep import PARTS, sweep
from machine import machine_facts
from make_model import make_model
from object_server import serving

from zse.format.reader import ZSEReader
from zse.settings import load_settings
from zse.stream.loader import RegionLoad, plan_load
from zse.stream.opening import open_source
from zse.stream.options import LOCAL_OPTIONS, NETWORK_OPTIONS, LoaderOptions, LoadReport
from zse.stream.placement import WholeFile
from zse.stream.residency import PageCacheMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.format.spec import ZSEHeader

SUPPORT = Path(__file__).resolve().parents[2] / "tests" / "support"


class Bench:
    """One file on one device."""

    def __init__(self, gpu: Any, allocate: Callable[[int], int], options: argparse.Namespace):
        self.gpu = gpu
        self.options = options
        self.path = options.file or options.folder / f"bench-{options.like}.zse"
        if not self.path.is_file():
            print(f"writing {self.path}", flush=True)
            threads = os.cpu_count() or 1
            digest = not options.no_digest
            make_model(self.path, like=options.like, quant="int4", threads=threads, digest=digest)
        self.placement = WholeFile(header_of(self.path))
        self.span = (self.placement.origin_bytes, self.placement.length_bytes)
        self.address = allocate(self.span[1])
        self.rows: list[dict[str, Any]] = []

    def load(self, url: str | Path, loader: LoaderOptions | None = None) -> LoadReport:
        source = open_source(url, load_settings())
        try:
            options = loader or self.loader()
            plan = plan_load(source, self.placement, options)
            return RegionLoad(self.gpu, source, plan, self.address, options).wait()
        finally:
            source.close()

    def loader(self, usual: LoaderOptions = LOCAL_OPTIONS, **changes: Any) -> LoaderOptions:
        """Return the options in use, or as the command line and the caller change them."""
        threads, chunk_mib = self.options.threads, self.options.chunk_mib
        asked = {"threads": threads, "chunk_bytes": chunk_mib and chunk_mib << 20}
        return replace(usual, **{k: v for k, v in asked.items() if v} | changes)

    def time(self, case: str, name: str, run: Callable[[], Any], repeat: int = 0) -> None:
        """Run several times and keep the median; the first run does not count."""
        results = [run()]
        started, used = time.perf_counter(), time.process_time()
        results = [run() for _ in range(repeat or self.options.repeat)]
        spent, used = time.perf_counter() - started, time.process_time() - used
        reports = [item for item in results if isinstance(item, LoadReport)]
        times = [item.seconds if isinstance(item, LoadReport) else item for item in results]
        row = {
            "case": case,
            "name": name,
            "seconds": round(statistics.median(times), 4),
            "best_seconds": round(min(times), 4),
            "gigabytes_per_second": round(self.span[1] / 1e9 / statistics.median(times), 2),
            "call_seconds": round(spent / len(results), 4),
            "cores_busy": round(used / spent, 1),
        }
        if reports:
            phases = reports[-1].phase_seconds
            row |= {
                "source": reports[-1].source,
                "phases_ms": {name: round(spent * 1e3, 1) for name, spent in phases.items()},
            }
        self.rows.append(row)
        print_row(row)

    # --- cases ----------------------------------------------------------------------------------

    def cached(self) -> None:
        warm(self.path)
        self.time("cached", "zse", lambda: self.load(self.path))
        if not self.options.no_digest:
            during = self.loader(is_verified=True)
            self.time("cached", "zse, digests checked", lambda: self.load(self.path, during))
        self.time(
            "cached",
            "copy from a mapping",
            lambda: pageable_copy(self.gpu, self.path, self.span, self.address),
        )
        seconds, length = link_copy(self.gpu, self.address, self.span[1])
        scaled = seconds * self.span[1] / length
        self.time("cached", "link limit (one pinned block)", lambda: scaled, repeat=1)

    def cold(self, folder: Path) -> None:
        path = folder / "bench-loader-cold.zse"
        size = self.path.stat().st_size
        try:
            copy_file(self.path, path)
            share = drop(path)
            if share > 0.02:
                print(f"{folder}: {share:.0%} of the file stays cached; not a cold disk")
                return
            threads, chunk = self.loader().threads, self.loader().chunk_bytes
            print(f"cold: {size / 1e9:.2f} GB in {folder}")
            self.time("cold", "zse", lambda: drop(path) * 0 or self.load(path))
            self.time(
                "cold",
                "bare O_DIRECT read to memory",
                lambda: drop(path) * 0 or direct_read(path, self.span, threads, chunk),
            )
            self.time(
                "cold",
                "copy from a mapping",
                lambda: drop(path) * 0 or pageable_copy(self.gpu, path, self.span, self.address),
                1,
            )
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def object_url(self) -> Iterator[tuple[str, int]]:
        """Serve the file as an object while the block runs; yield its address and the port."""
        with serving(self.path) as port:
            os.environ |= {
                "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
            }
            yield "s3://bucket/model.zse", port

    def s3(self) -> None:
        warm(self.path)
        usual = self.loader(NETWORK_OPTIONS)
        with self.object_url() as (url, port):
            self.time("s3", "zse", lambda: self.load(url, usual))
            get = partial(plain_get, port, self.span, usual.threads, usual.chunk_bytes)
            self.time("s3", "bare parallel GET to memory", get)

    def check(self) -> str:
        """Load once more, read the device's block back, and compare it with the file."""
        self.load(self.path)
        stream, block = self.gpu.create_stream(), self.gpu.allocate_host(8 << 20)
        with self.path.open("rb") as file:
            file.seek(self.span[0])
            for offset in range(0, self.span[1], 8 << 20):
                count = min(8 << 20, self.span[1] - offset)
                self.gpu.copy_to_host(block.address, self.address + offset, count, stream)
                stream.synchronize()
                if bytes(block.view[:count]) != file.read(count):
                    return f"WRONG BYTES behind byte {offset}"
        block.free()
        stream.destroy()
        return "right"


def header_of(path: Path) -> ZSEHeader:
    with ZSEReader(path) as reader:
        return reader.header


def warm(path: Path) -> None:
    buffer = bytearray(8 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def drop(path: Path) -> float:
    """Put a file out of the page cache; return the share of it that stayed."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        cache = PageCacheMap(file.fileno(), size)
        shares = [cache.resident_share(start, 256 << 10) for start in range(0, size, 256 << 10)]
        cache.close()
        return statistics.mean(shares)


def copy_file(source: Path, target: Path) -> None:
    with source.open("rb") as reading, target.open("wb") as writing:
        while os.sendfile(writing.fileno(), reading.fileno(), None, 64 << 20):
            pass


def print_row(row: dict[str, Any]) -> None:
    phases = " ".join(f"{name} {spent:.0f}" for name, spent in row.get("phases_ms", {}).items())
    print(
        f"{row['case']:7} {row['name']:31} {row['seconds'] * 1e3:8.0f} ms "
        f"{row['gigabytes_per_second']:7.2f} GB/s  call {row['call_seconds'] * 1e3:4.0f} ms, "
        f"{row['cores_busy']:4.1f} cores  {row.get('source', ''):10} {phases}",
        flush=True,
    )


def open_device(host: bool) -> tuple[Any, Callable[[int], int], str]:
    """Return the device, a way to allocate a block on it, and its name."""
    if host:
        sys.path.insert(0, str(SUPPORT))
        from host_gpu import HostGpu

        stand_in = HostGpu()
        stand_in.make_current()
        return stand_in, stand_in.memory, "none (ordinary memory)"
    from zse.device.cuda.gpu import Gpu

    gpu = Gpu.open()
    return gpu, lambda length: gpu.allocate(length).address, gpu.info.name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--like", default="qwen2.5-7b", help="shapes, as make_model knows them")
    parser.add_argument("--file", type=Path, help="a .zse file to load instead")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="for the cached file")
    parser.add_argument("--disk", type=Path, help="folder on a disk, for the cold case")
    parser.add_argument("--threads", type=int, help="instead of what suits the source")
    parser.add_argument("--chunk-mib", type=int, help="instead of what suits the source")
    parser.add_argument("--no-digest", action="store_true", help="of a file that is made, and fast")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--sweep", nargs="*", choices=PARTS, help="try other ways, threads and chunks"
    )
    parser.add_argument("--no-s3", action="store_true")
    parser.add_argument("--host", action="store_true", help="memory stands in for a GPU")
    options = parser.parse_args()
    gpu, allocate, name = open_device(options.host)
    bench = Bench(gpu, allocate, options)
    print(f"{name}: {bench.span[1] / 1e9:.2f} GB of tensors")
    bench.cached()
    if options.sweep is not None:
        sweep(bench, options.sweep)
    if options.disk:
        bench.cold(options.disk)
    if not options.no_s3:
        bench.s3()
    found = "not checked" if options.host else bench.check()
    print(f"bytes on the device: {found}")
    facts = {"subject": "loader", **machine_facts(), "gpu": name, "bytes": bench.span[1]}
    print(json.dumps(facts | {"contents": found, "runs": bench.rows}, sort_keys=True))
    sys.exit(found.startswith("WRONG"))


if __name__ == "__main__":
    main()
