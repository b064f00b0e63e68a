"""llama.cpp on a CPU: built from the sdist of llama-cpp-python, asked through its own programs.

The build names each instruction set instead of asking the compiler for all that the CPU flags
name: some hosts name AMX and end a process that uses it.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from timed_server import TimedServer

from peers.errors import PeerNotRunError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
PROGRAMS = ("llama-server", "llama-bench", "llama-batched-bench", "llama-quantize")
FACTS = "build.json"
OPTION_OF_FLAG = {
    "sse4_2": "SSE42",
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "bmi2": "BMI2",
    "avx_vnni": "AVX_VNNI",
    "avx512f": "AVX512",
    "avx512_vbmi": "AVX512_VBMI",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
}
"""A flag of /proc/cpuinfo -> what llama.cpp's build calls it. None of AMX."""
BUILD_OPTIONS = (
    *("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=OFF", "-DLLAMA_OPENSSL=OFF"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF"),
    *("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"),
    # What was built may be moved: the libraries are looked for beside whoever needs them.
    *("-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN"),
)


@dataclass(frozen=True, kw_only=True)
class LlamaCpp:
    """A folder with llama.cpp's programs."""

    folder: Path
    threads: int

    def with_threads(self, threads: int) -> LlamaCpp:
        return replace(self, threads=threads)

    def facts(self) -> dict[str, object]:
        """Return how it was built, as far as the folder says."""
        path = self.folder / FACTS
        return json.loads(path.read_text()) if path.is_file() else {"folder": str(self.folder)}

    def command(self, program: str, *words: object) -> list[str]:
        return [str(self.folder / program), *map(str, words)]

    def decode(self, model: Path, *, prompt: int, output: int) -> list[str]:
        """Return a command that decodes ``output`` tokens after ``prompt`` others."""
        return self._bench(model, "-p", 0, "-n", output, "-d", prompt)

    def prefill(self, model: Path, *, prompt: int) -> list[str]:
        return self._bench(model, "-p", prompt, "-n", 0)

    def _bench(self, model: Path, *words: object) -> list[str]:
        shared = ("-m", model, "-t", self.threads, "-r", 1, "-o", "json")
        return self.command("llama-bench", *shared, *words)

    def batch(self, model: Path, *, prompt: int, output: int, batch: int) -> list[str]:
        """Return a command that decodes for several requests at once."""
        sizes = ("-c", batch * (prompt + output), "-npp", prompt, "-ntg", output, "-npl", batch)
        threads = ("-t", self.threads, "-tb", self.threads, "--output-format", "jsonl")
        return self.command("llama-batched-bench", "-m", model, *sizes, *threads)

    def server(self, model: Path, *, context: int, more: Sequence[str] = ()) -> TimedServer:
        """Return its server with one slot, whose context it takes as small as it may be."""
        words = ("-m", model, "-c", context, "-np", 1, "-t", self.threads)
        command = self.command("llama-server", *words, *more)
        return TimedServer(
            name="llama-server",
            command=lambda port: [*command, "--port", str(port)],
            ready_path="/health",
            path="/completion",
            body=completion_body,
        )

    def quantize(self, source: Path, target: Path, kind: str) -> None:
        """Write another form of a model; it appears under its name when it is whole."""
        draft = target.with_name(f"{target.name}.partial")
        words = (source, draft, kind, self.threads)
        subprocess.run(
            self.command("llama-quantize", *words), check=True, capture_output=True, text=True
        )
        draft.replace(target)


def completion_body(prompt: list[int], tokens: int, streamed: bool) -> dict[str, object]:
    """Return what llama-server is asked: so many tokens, chosen greedily, nothing cached."""
    return {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "stream": streamed,
    }


def decode_rate_of(output: str) -> float:
    """Return tokens a second of what ``llama-bench`` wrote."""
    return float(json.loads(output)[0]["avg_ts"])


def batch_rate_of(output: str) -> float:
    """Return tokens a second, of all requests together, of what ``llama-batched-bench`` wrote."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return float(json.loads(lines[-1])["speed_tg"])


def find_or_build(given: Path | None, work: Path, *, threads: int) -> LlamaCpp:
    """Return the programs of a folder, else those that are built in ``work`` once.

    Raises:
        PeerNotRunError: The folder lacks one, or they could not be built.
    """
    folder = given or work / f"llama.cpp-{VERSION}"
    if given is None and not has_all(folder):
        build(folder, threads=threads)
    if not has_all(folder):
        raise PeerNotRunError(f"{folder} has not all of {', '.join(PROGRAMS)}")
    return LlamaCpp(folder=folder.resolve(), threads=threads)


def has_all(folder: Path) -> bool:
    return all((folder / program).is_file() for program in PROGRAMS)


def build(folder: Path, *, threads: int) -> None:
    """Fetch the sdist, compile llama.cpp for what this CPU has, put the programs into a folder.

    Raises:
        PeerNotRunError: A tool or the network is missing, or the compiler failed.
    """
    missing = [tool for tool in ("cmake", "ninja", "c++") if shutil.which(tool) is None]
    if missing:
        raise PeerNotRunError(f"llama.cpp cannot be built without {', '.join(missing)}")
    work = folder.with_name(f"{folder.name}.build")
    work.mkdir(parents=True, exist_ok=True)
    fetch = (sys.executable, "-m", "pip", "download", "--no-deps", f"--no-binary={PACKAGE}")
    run_step("fetch", *fetch, f"{PACKAGE}=={VERSION}", "-d", str(work), log=work)
    (sdist,) = work.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    (source,) = work.glob("*/vendor/llama.cpp")
    options = [*BUILD_OPTIONS, *options_of(cpu_flags())]
    tree = work / "tree"
    run_step("configure", "cmake", "-S", str(source), "-B", str(tree), *options, log=work)
    run_step("compile", "ninja", "-C", str(tree), "-j", str(threads), *PROGRAMS, log=work)
    facts = {"version": VERSION, "machine": platform.machine(), "cmake": options}
    (tree / "bin" / FACTS).write_text(json.dumps(facts))
    shutil.copytree(tree / "bin", folder, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(work)


def run_step(step: str, *command: str, log: Path) -> None:
    """Run a command of the build; its words are kept in a file of the step."""
    path = log / f"{step}.log"
    with path.open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=file, check=False)
    if done.returncode:
        raise PeerNotRunError(f"llama.cpp: could not {step}, see {path}")


def cpu_flags() -> set[str]:
    """Return what this CPU names; nothing where the kernel does not list x86 flags."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def options_of(flags: Collection[str]) -> list[str]:
    """Return the build's options for a CPU with these flags; nothing on other than x86."""
    if not flags:
        return []
    return [
        f"-DGGML_{name}={'ON' if flag in flags else 'OFF'}" for flag, name in OPTION_OF_FLAG.items()
    ]
