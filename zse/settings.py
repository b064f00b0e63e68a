"""The environment, read once, frozen.

This is the only module that reads ``os.environ``. A malformed value is an error that names the
variable, the value and what is accepted; nothing falls back in silence.
"""

from __future__ import annotations

import os
from dataclasses import field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import BadSettingError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


@record
class Settings:
    """What the environment says. Command-line flags win over these values."""

    model: str = "tiny"
    """ZSE_MODEL: model served or chatted with when none is named."""
    host: str = "127.0.0.1"
    """ZSE_HOST: address the server binds. Images set 0.0.0.0."""
    port: int = 8000
    """PORT, else ZSE_PORT: port the server binds."""
    device: str = "auto"
    """ZSE_DEVICE: auto, cpu, cuda or cuda:N."""
    served_model_name: str = ""
    """ZSE_SERVED_MODEL_NAME: name shown by /v1/models; empty means taken from the file."""
    threads: int = 0
    """ZSE_THREADS: CPU threads; 0 means one a core, within the container's quota."""
    kv_gib: float = 0.0
    """ZSE_KV_GIB: memory for the KV cache in GiB; 0 means chosen from what is free."""
    vram_gib: float = 0.0
    """ZSE_VRAM_GIB: GPU memory for everything, in GiB; 0 means all that is free."""
    kv_dtype: str = "auto"
    """ZSE_KV_DTYPE: type of the cached keys and values: auto, fp32, bf16 or int8."""
    exact_activations: bool = False
    """ZSE_EXACT_ACTIVATIONS: never round activations to 8 bits on a GPU; slower decoding."""
    kernels: str = ""
    """ZSE_KERNELS: kernel pack for the GPU; empty looks in the model file, the image, the cache."""
    released_kernels: str = ""
    """ZSE_RELEASED_KERNELS: repository of released packs; empty: the package's; none: nobody."""
    max_context: int = 0
    """ZSE_MAX_CONTEXT: longest sequence in tokens; 0 means what the model says."""
    max_running: int = 64
    """ZSE_MAX_RUNNING: answers that run at once; the others wait."""
    max_queue: int = 256
    """ZSE_MAX_QUEUE: answers that may wait before new requests get 429."""
    drain_seconds: float = 30.0
    """ZSE_DRAIN_SECONDS: how long SIGTERM waits for work in flight."""
    cache_dir: Path = Path("~/.cache/zse")
    """ZSE_CACHE_DIR: all that is kept for later: models, layers, kernels (under XDG_CACHE_HOME)."""
    cache_gib: float = 0.0
    """ZSE_CACHE_GIB: most that the whole cache may take; 0 means what the disk has."""
    log_level: str = "info"
    """ZSE_LOG_LEVEL: debug, info, warning or error."""
    log_format: str = "auto"
    """ZSE_LOG_FORMAT: text, json, or auto: text for a person at a terminal, else JSON lines."""
    s3_endpoint_url: str = ""
    """AWS_ENDPOINT_URL_S3, else AWS_ENDPOINT_URL: S3-compatible endpoint; empty means AWS."""
    source_date_epoch: int = 0
    """SOURCE_DATE_EPOCH: the time written into images, seconds since 1970."""
    registry_auth_file: str = ""
    """REGISTRY_AUTH_FILE, else DOCKER_CONFIG/config.json: registry credentials."""
    debian_mirror: str = ""
    """ZSE_DEBIAN_MIRROR: package mirror for ``--base debian``; empty means the one apt uses."""
    hf_token: str = field(default="", repr=False)
    """HF_TOKEN: access token for gated repositories on the hub."""
    hf_endpoint: str = "https://huggingface.co"
    """HF_ENDPOINT: the hub that hf:// addresses mean."""
    runpod_api_key: str = field(default="", repr=False)
    """RUNPOD_API_KEY: key of the account for ``zse deploy runpod --apply``."""
    no_color: bool = False
    """NO_COLOR: plain output."""
    debug: bool = False
    """ZSE_DEBUG: show where every error came from, the trace of Python."""
    start_time_ns: int = 0
    """ZSE_START_TIME_NS: CLOCK_REALTIME when the launcher started the process, for the ledger."""


_VARIABLES: dict[str, tuple[str, ...]] = {
    "port": ("PORT", "ZSE_PORT"),
    "s3_endpoint_url": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "source_date_epoch": ("SOURCE_DATE_EPOCH",),
    "hf_token": ("HF_TOKEN",),
    "hf_endpoint": ("HF_ENDPOINT",),
    "runpod_api_key": ("RUNPOD_API_KEY",),
    "registry_auth_file": ("REGISTRY_AUTH_FILE",),
}


_OPENMP_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_SPIN_COUNT = 2000
"""Turns of libgomp's waiting loop, each a pause of 15 to 50 ns: measured by
``scripts/bench/cpu_sharing.py``."""


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the environment into a frozen object.

    Args:
        environ: The variables to read; the process environment when not given.

    Raises:
        BadSettingError: A variable holds a value that cannot be parsed.
    """
    env = os.environ if environ is None else environ
    values: dict[str, object] = {}
    for entry in fields(Settings):
        if entry.name == "no_color":
            values[entry.name] = bool(env.get("NO_COLOR"))
            continue
        names = _VARIABLES.get(entry.name, (f"ZSE_{entry.name.upper()}",))
        name = next((n for n in names if env.get(n, "") != ""), None)
        if name is not None:
            values[entry.name] = _parse(name, env[name], type(entry.default))
    values.setdefault("cache_dir", _default_cache_dir(env))
    values.setdefault("registry_auth_file", _default_auth_file(env))
    return Settings(**values)  # type: ignore[arg-type]


def subprocess_environment(**extra: str) -> dict[str, str]:
    """Return a copy of the process environment with ``extra`` set, for child processes."""
    return {**os.environ, **extra}


def wait_briefly_in_openmp() -> None:
    """Tell OpenMP how long a thread that has nothing to do may spin before it sleeps.

    By default libgomp spins for milliseconds. On cores that are shared, or limited by a quota, the
    spinning takes the time that the other threads need to finish: decoding falls to a tenth. A
    thread that never spins must be woken for every operation: a third of decoding on idle cores.
    A few dozen microseconds cover the gap between two operations of a step and cost little else.

    OpenMP reads the environment once, when its library is loaded: call this before torch is
    imported. What the user has set stays.
    """
    if not any(name in os.environ for name in _OPENMP_WAITING):
        os.environ["GOMP_SPINCOUNT"] = str(_SPIN_COUNT)


def _parse(name: str, text: str, kind: type) -> object:
    if kind is str:
        return text
    if isinstance(Path(), kind):
        return Path(text).expanduser()
    if kind is bool:
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise BadSettingError(f"{name}={text!r} is not a yes or a no", hint="Use 1 or 0.")
    try:
        number = kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise BadSettingError(
            f"{name}={text!r} is not {wanted}", hint=f"Set {name} to {wanted} or unset it."
        ) from None
    if number < 0 or number != number:
        raise BadSettingError(f"{name}={text!r} must not be negative", hint=f"Unset {name}.")
    return number


def _default_cache_dir(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "zse"


def _default_auth_file(env: Mapping[str, str]) -> str:
    folder = env.get("DOCKER_CONFIG", "")
    return str((Path(folder) if folder else Path("~/.docker").expanduser()) / "config.json")
