"""What the environment and ``zse.toml`` say, read once, frozen. No other module reads either.

A malformed value is an error that names the variable, the value and what is accepted; nothing falls
back in silence. Whoever starts something, a command, the server or a call of the Python API, loads
the settings and hands on what it takes of them.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from zse.environment import GPU_QUEUES
from zse.errors import BadSettingError
from zse.option import WANTED, Option, described, options_of, several, with_values
from zse.records import record
from zse.route_options import RouteOptions
from zse.server_options import ServeOptions
from zse.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


@record
class AWSSettings:
    """Where S3 is and who asks, by the variables that all tools of AWS read."""

    PREFIX: ClassVar = "AWS_"

    access_key_id: str = described("", "Key of the account", is_secret=True)
    secret_access_key: str = described("", "Its secret", is_secret=True)
    session_token: str = described("", "Token of a key that expires", is_secret=True)
    region: str = described(
        "",
        "Region of the buckets",
        unset="what the AWS configuration file says",
        env="AWS_REGION AWS_DEFAULT_REGION",
    )
    endpoint_url: str = described(
        "", "S3-compatible endpoint", unset="AWS", env="AWS_ENDPOINT_URL_S3 AWS_ENDPOINT_URL"
    )
    profile: str = described(
        "", "Section of the AWS files", unset="default", env="AWS_PROFILE AWS_DEFAULT_PROFILE"
    )
    shared_credentials_file: Path = described(Path("~/.aws/credentials"), "File of keys by profile")
    config_file: Path = described(Path("~/.aws/config"), "File of settings by profile")
    role_arn: str = described("", "Role that a web identity is exchanged for")
    role_session_name: str = described("", "What that session is called", unset="zse")
    sts_endpoint_url: str = described(
        "", "Where it is exchanged", unset="AWS", env="AWS_ENDPOINT_URL_STS"
    )
    web_identity_token_file: str = described("", "File of the web identity's token")
    container_credentials_relative_uri: str = described(
        "", "Path at which a container of ECS asks for keys"
    )
    container_credentials_full_uri: str = described(
        "", "Address at which a container asks for keys"
    )
    container_authorization_token: str = described("", "What it shows there", is_secret=True)
    container_authorization_token_file: str = described("", "File of what it shows there")
    ec2_metadata_disabled: bool = described(False, "Never ask the machine for the keys of its role")
    ec2_metadata_service_endpoint: str = described(
        "", "Where the machine is asked", unset="http://169.254.169.254"
    )
    ca_bundle: str = described("", "File of certificates that S3 is held to", unset="the system's")


@record
class HubSettings:
    """The hub of models, by the variables that its own tools read."""

    PREFIX: ClassVar = "HF_"

    endpoint: str = described("https://huggingface.co", "The hub that hf:// addresses mean")
    token: str = described("", "Access token for gated repositories", is_secret=True)
    hub_home: Path = described(
        Path("~/.cache/huggingface"),
        "Folder of the hub's own tools (under XDG_CACHE_HOME)",
        env="HF_HOME",
    )
    token_path: Path = described(
        Path("~/.cache/huggingface/token"),
        "File of the token that `hf auth login` saved (under HF_HOME)",
    )


@record
class ProxySettings:
    """The way to other machines, by the variables that most programs read."""

    http_proxy: str = described("", "Proxy for http://", env="http_proxy HTTP_PROXY")
    https_proxy: str = described("", "Proxy for https://", env="https_proxy HTTPS_PROXY")
    all_proxy: str = described("", "Proxy where no other is named", env="all_proxy ALL_PROXY")
    no_proxy: str = described(
        "",
        "Hosts and domains that are reached without one, with commas; * is all",
        env="no_proxy NO_PROXY",
    )


@record
class Folders:
    """Where other tools, and zse, keep what is theirs."""

    cache_home: Path = described(Path("~/.cache"), "What may be lost", env="XDG_CACHE_HOME")
    config_home: Path = described(Path("~/.config"), "What was set up", env="XDG_CONFIG_HOME")
    docker_config: Path = described(Path("~/.docker"), "What docker keeps", env="DOCKER_CONFIG")


@record
class LibrarySettings:
    """What libraries read themselves, and zse sets before they do unless the user has."""

    openmp_spin_count: str = described(
        "2000",
        "Turns that a waiting thread of OpenMP makes before it sleeps; not set by zse where "
        "OMP_WAIT_POLICY is",
        env="GOMP_SPINCOUNT",
    )
    openmp_wait_policy: str = described(
        "", "What waiting threads of OpenMP do", env="OMP_WAIT_POLICY"
    )
    gpu_queues: str = described(
        GPU_QUEUES, "Queues from this process to a GPU", env="CUDA_DEVICE_MAX_CONNECTIONS"
    )


@record
class Settings:
    """What the environment and ``zse.toml`` say. Command-line flags win over these values."""

    serve: ServeOptions = ServeOptions()
    route: RouteOptions = RouteOptions()
    aws: AWSSettings = AWSSettings()
    hub: HubSettings = HubSettings()
    proxies: ProxySettings = ProxySettings()
    folders: Folders = Folders()
    libraries: LibrarySettings = LibrarySettings()
    config: str = described(
        "", "A file of settings", unset="zse.toml of the current folder", is_internal=True
    )
    released_kernels: str = described(
        "",
        "Repository of released packs; none asks nobody",
        unset="the package's",
        is_internal=True,
    )
    cache_dir: Path = described(
        Path("~/.cache/zse"),
        "All that is kept for later: models, layers, kernels (under XDG_CACHE_HOME)",
    )
    home: Path = described(
        Path("~/.zse"), "What must not be lost: API keys and the log of who asked what"
    )
    cache_gib: float = described(
        0.0, "Most that the whole cache may take", unit="GiB", unset="what the disk has"
    )
    source_date_epoch: int = described(
        0, "The time written into images", unit="seconds since 1970", env="SOURCE_DATE_EPOCH"
    )
    registry_auth_file: Path = described(
        Path("~/.docker/config.json"),
        "Credentials of registries (under DOCKER_CONFIG)",
        env="REGISTRY_AUTH_FILE",
    )
    debian_mirror: str = described(
        "", "Package mirror for --base debian", unset="the one that apt uses"
    )
    runpod_api_key: str = described(
        "", "Key of the account for zse deploy runpod --apply", env="RUNPOD_API_KEY", is_secret=True
    )
    no_color: bool = described(False, "Plain output", env="NO_COLOR")
    debug: bool = described(False, "Show where every error came from, the trace of Python")

    @property
    def cache_bytes(self) -> int:
        """Most that the whole cache may take; 0 means what the disk has."""
        return int(self.cache_gib * GIB)


FILE_NAME = "zse.toml"
_BELOW = {
    "cache_dir": ("cache_home", "zse"),
    "hub_home": ("cache_home", "huggingface"),
    "token_path": ("hub_home", "token"),
    "registry_auth_file": ("docker_config", "config.json"),
}
"""Paths that, when nobody gives them, lie in a folder that somebody may give."""


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the environment and the files into a frozen object.

    A variable wins over ``zse.toml`` of the current folder, or the file that ZSE_CONFIG names, and
    that over ``zse/zse.toml`` below XDG_CONFIG_HOME.

    Args:
        environ: The variables to read; the process environment when not given.

    Raises:
        BadSettingError: A value cannot be parsed, or is out of range, or a file has unknown keys.
    """
    rows = options_of(Settings)
    values: dict[str, Any] = {key: value for key, (value, _) in _said(environ, rows).items()}
    for row in rows.values():
        if row.kind is Path:
            values[row.key] = _home_in(str(values.get(row.key, row.default)))
    if values["home"].parts[:1] == ("~",):  # of a user whom the system does not know
        values["home"] = Path("/", *values["home"].parts[1:])  # as containers have it
    return with_values(Settings(), values)


def settings_origins(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return where each value comes from, by key: a variable or a file; defaults are left out.

    Raises:
        BadSettingError: As ``load_settings``.
    """
    return {key: origin for key, (_, origin) in _said(environ, options_of(Settings)).items()}


def settings_files(environ: Mapping[str, str] | None = None) -> list[Path]:
    """Return the files that are read, the weakest first.

    Raises:
        BadSettingError: As ``load_settings``.
    """
    return _files(_of_environment(environ, options_of(Settings)))


Said = dict[str, tuple[object, str]]
"""Values by key, each with the variable or the file that says it."""


def _said(environ: Mapping[str, str] | None, rows: Mapping[str, Option]) -> Said:
    said = _of_environment(environ, rows)
    found: Said = {}
    for path in _files(said):
        from zse.settings_file import read_settings_file

        values = read_settings_file(path, rows)
        found |= {key: (value, str(path)) for key, value in values.items()}
    found |= said
    for key, (folder, name) in _BELOW.items():
        if key not in found and folder in found:
            value, origin = found[folder]
            found[key] = Path(str(value)) / name, origin
    return found


def _of_environment(environ: Mapping[str, str] | None, rows: Mapping[str, Option]) -> Said:
    env = os.environ if environ is None else environ
    found: Said = {}
    for row in rows.values():
        variable = next((name for name in row.variables if env.get(name)), None)
        if variable is not None:
            found[row.key] = _parse(row, variable, env[variable]), variable
    return found


def names_like_ours() -> list[str]:
    """Return the names of all variables that begin as ours do, whether anything reads them."""
    return sorted(name for name in os.environ if name.startswith("ZSE_"))


def subprocess_environment(**extra: str) -> dict[str, str]:
    """Return a copy of the process environment with ``extra`` set, for child processes."""
    return {**os.environ, **extra}


def prepare_for_torch() -> None:
    """Tell OpenMP how long an idle thread may spin, and torch not to miss numpy aloud.

    Nothing here uses numpy, and its absence is no news to whoever converts a model.

    By default libgomp spins for milliseconds. On cores that are shared, or limited by a quota, the
    spinning takes the time that the other threads need to finish: decoding falls to a tenth. A
    thread that never spins must be woken for every operation: a third of decoding on idle cores.
    A few dozen microseconds cover the gap between two operations of a step and cost little else.

    OpenMP reads the environment once, when its library is loaded: call this before torch is
    imported. What the user has set stays. A turn is a pause of 15 to 50 ns; their number gave 0.88
    to 0.96 of the best of six settings alone, beside two busy neighbours and under a quota.
    """
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", LibrarySettings().openmp_spin_count)


def prepare_for_kitoken() -> None:
    """Have the allocator inside kitoken (mimalloc) take ordinary pages, unless the user has said.

    A tokenizer's tables are spread over the gigabyte that it reserves: in huge pages they hold 12
    MB more. It reads the environment when the module is loaded: call this before.
    """
    os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")


def _home_in(path: str) -> Path:
    return Path(os.path.expanduser(path))  # noqa: PTH111 - which fails where a user has no home


def _files(said: Said) -> list[Path]:
    """Return the files that are there, the weakest first.

    Raises:
        BadSettingError: The one that ZSE_CONFIG names is not.
    """
    named = str(said.get("config", ("",))[0])
    config_home = str(said.get("config_home", ("~/.config",))[0])
    if named and not Path(named).is_file():
        raise BadSettingError(
            f"ZSE_CONFIG={named!r} is no file", hint="Name a file, or unset ZSE_CONFIG."
        )
    users = _home_in(config_home) / "zse" / FILE_NAME
    return [path for path in (users, Path(named or FILE_NAME)) if path.is_file()]


def _parse(row: Option, name: str, text: str) -> object:
    if row.kind is bool:
        if name == "NO_COLOR" or text.lower() in _TRUE:  # whatever it says, says no-color.org
            return True
        if text.lower() in _FALSE:
            return False
        raise BadSettingError(f"{name}={text!r} is not a yes or a no", hint="Use 1 or 0.")
    value: object = several([text]) if row.kind is tuple else text
    if row.kind in (int, float):
        try:
            value = row.kind(text)
        except ValueError:
            wanted = WANTED[row.kind]
            raise BadSettingError(
                f"{name}={text!r} is not {wanted}", hint=f"Set {name} to {wanted} or unset it."
            ) from None
    if not row.fits(value):
        raise BadSettingError(
            f"{name}={text!r} is out of range, expected {row.expected}", hint=f"Unset {name}."
        )
    return value
