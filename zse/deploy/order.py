"""What is to be deployed, whatever the platform: an image, a name, and how it scales."""

from __future__ import annotations

import re
from dataclasses import field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.oci.registry.reference import parse_reference
from zse.option import described, own_options
from zse.records import record
from zse.server_options import MAX_PORT
from zse.store.location import is_address, parse_location
from zse.unread_variables import refuse_lost_guards

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.models.memory import MemoryEstimate
    from zse.oci.image.facts import ImageFacts
    from zse.store.location import Location

MODELS_FOLDER = "/models"
"""Where volumes and buckets are mounted; the image expects a mounted model there."""
NO_GPU = "none"
MAX_NAME = 52
"""Kubernetes allows 63 characters, and platforms add suffixes."""

_OURS = frozenset({"PORT", "ZSE_PORT"})
"""Probes and services follow the port: it has an option of its own."""

_ACCESS = frozenset({"ZSE_API_KEYS", "ZSE_API_KEY", "ZSE_API_KEYS_FILE", "ZSE_PUBLIC"})
"""What says whom the server asks for a key; ``ZSE_PUBLIC`` that a gate in front of it does."""

_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# An AWS name or an Azure vault's address of a secret, whole.
_SECRET_ADDRESS = re.compile(
    r"arn:aws[a-z-]*:(?:secretsmanager|ssm):[A-Za-z0-9:/_.+=@-]+"
    r"|https://[a-z0-9.-]+/secrets/[A-Za-z0-9-]+(?:/[a-f0-9]+)?"
)


@record
class SecretUse:
    """An environment variable whose value only the platform knows."""

    variable: str
    secret: str
    """Name of the secret on the platform."""
    key: str
    """Entry of the secret, where a secret has several."""

    @property
    def is_address(self) -> bool:
        """Whether the secret is named by a cloud's whole address, which only Terraform takes."""
        return bool(_SECRET_ADDRESS.fullmatch(self.secret))


@record
class ImageLook:
    """What is known of an order's image."""

    facts: ImageFacts | None = None
    """What its labels say; None when they were not read."""
    why_not: str = ""
    """Why they were not read; empty when nobody tried."""


@record
class Order:
    """One deployment, before a platform's words.

    Raises:
        UsageError: A value is out of range or malformed, or a variable that was to guard the server
            has a name that nothing reads.
    """

    image: str
    """Image reference that the platform pulls."""
    look: ImageLook = field(default_factory=ImageLook)
    """What the image says of itself."""
    model: str = ""
    """MODEL as given: sized when it can be read here, passed on when it is an address."""
    need: MemoryEstimate | None = None
    """Memory the model needs; None when it is not known."""
    name: str = described("", "Of the endpoint; the image's name when not given", env="")
    form: str = described(
        "",
        "Of modal: server or class; runpod: load-balancer or queue; kubernetes: scale-to-zero, "
        "always-on, mesh or ray; terraform: the module",
        env="",
    )
    """Empty is the target's first."""
    gpu: str = ""
    """The platform's name of a GPU type; empty chooses one; "none" is a CPU deployment."""
    min_replicas: int = described(0, "Replicas that never sleep", key="min", env="")
    max_replicas: int = described(1, "Replicas at most", key="max", env="", least=1)
    concurrency: int = described(16, "Requests a replica", env="", least=1)
    """What a replica works on before another is started."""
    idle_seconds: int = described(300, "Until a replica sleeps", env="")
    """Without requests."""
    startup_seconds: int = described(240, "Until a start has failed", env="", least=1)
    drain_seconds: int = described(30, "For work in flight at a stop", env="")
    port: int = described(8000, "Port of the server", env="", least=1, most=MAX_PORT)
    is_public: bool = described(False, "Let anyone ask who knows the address", key="public", env="")
    region: str = described("", "As the platform names it", env="")
    volume: str = described("", "Volume of the platform, mounted at /models", env="")
    bucket: str = described("", "Bucket mounted at /models (modal)", env="")
    bucket_secret: str = described("", "The platform's secret with the bucket's keys", env="")
    registry_secret: str = described("", "The platform's credential for the registry", env="")
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[SecretUse, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    """Settings that only this target knows."""

    def __post_init__(self) -> None:
        parse_reference(self.image)
        if self.address is not None and self.address.is_prefix:
            raise UsageError(
                f"{self.address} names a folder, not a model",
                hint=f"Add a name: {self.address.url.rstrip('/')}/NAME.zse",
            )
        name = self.name or _name_of(self.image)
        if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
            raise UsageError(
                f"the name {name!r} does not fit every platform",
                hint=f"Use lower-case letters, digits and dashes, at most {MAX_NAME}.",
            )
        object.__setattr__(self, "name", name)
        self._check_numbers()
        refuse_lost_guards(self.variables)
        for variable in self.variables:
            if not _VARIABLE.fullmatch(variable):
                raise UsageError(f"{variable!r} is not the name of an environment variable")
            if variable in _OURS:
                raise UsageError(f"{variable} is not for --env", hint="Use --port.")
        both = self.env.keys() & {use.variable for use in self.secrets}
        if both:
            raise UsageError(f"{', '.join(sorted(both))}: a value and a secret at the same time")

    def _check_numbers(self) -> None:
        for name, row in own_options(Order).items():
            row.check(getattr(self, name), name)
        if self.min_replicas > self.max_replicas:
            raise UsageError(
                f"{self.min_replicas} replicas at least, but {self.max_replicas} at most"
            )
        if self.volume and self.bucket:
            raise UsageError("a volume and a bucket cannot both be mounted at /models")

    @property
    def variables(self) -> list[str]:
        """The names of what the server's environment is given."""
        return [*self.env, *(use.variable for use in self.secrets)]

    @property
    def says_who_may_ask(self) -> bool:
        """Whether the server is given API keys, or is told by hand that it needs none."""
        return not _ACCESS.isdisjoint(self.variables)

    def require_keys(self, why: str) -> None:
        """Refuse to let anyone in by mistake; ``why`` says who could ask otherwise.

        Raises:
            UsageError: The server is given no API keys.
        """
        if not self.says_who_may_ask:
            raise UsageError(
                f"{why}, and the server has no API keys",
                hint="Add --secret ZSE_API_KEYS=SECRET, with keys of your own making or of `zse "
                "api-key create`; --env ZSE_PUBLIC=1 lets in whoever comes.",
            )

    @property
    def has_gpu(self) -> bool:
        return self.gpu != NO_GPU

    @property
    def names_gpu(self) -> bool:
        """Whether a GPU is asked for by its name. Tables of targets ask: [cannot.names_gpu]."""
        return self.has_gpu and bool(self.gpu)

    @property
    def is_mounted(self) -> bool:
        return bool(self.volume or self.bucket)

    @property
    def address(self) -> Location | None:
        """Where MODEL is when the server is to read it from there; None for a path or a name."""
        location = parse_location(self.model) if is_address(self.model) else None
        return location if location and not location.is_local else None

    def environment(self, models_folder: str = MODELS_FOLDER) -> dict[str, str]:
        """Return what the container needs beyond what the image sets."""
        found = {"ZSE_DRAIN_SECONDS": str(max(1, self.drain_seconds - 5)), "PORT": str(self.port)}
        if not self.says_who_may_ask:
            found["ZSE_PUBLIC"] = "1"  # the platform is the gate, or the plan was refused
        if self.address is not None:
            found["ZSE_MODEL"] = self.address.url
        elif self.is_mounted and self.model:
            found["ZSE_MODEL"] = f"{models_folder}/{PurePosixPath(self.model).name}"
        return {**found, **self.env}

    @property
    def model_place(self) -> str:
        """What the server is told to read; empty when the image decides."""
        return self.environment().get("ZSE_MODEL", "")

    @property
    def is_fetched(self) -> bool:
        """Whether the server reads its model from an address, and may keep a copy."""
        facts = self.look.facts
        is_of_image = not self.model_place and facts is not None and facts.weights == "url"
        return is_of_image or is_address(self.model_place)

    @property
    def wants_gpu(self) -> bool:
        """Whether it is for a GPU where a platform has both: as it says, else as its image says."""
        facts = self.look.facts
        return self.has_gpu and (bool(self.gpu) or facts is None or facts.device != "cpu")

    @property
    def reads_s3(self) -> bool:
        """Whether the server is told to read its model from object storage."""
        return self.model_place.startswith("s3://")

    def with_form(self, forms: tuple[str, ...] = ("",)) -> Order:
        """Return the order with one of a target's forms.

        Raises:
            UsageError: The target has no such form.
        """
        if self.form and self.form not in forms:
            known = ", ".join(form for form in forms if form)
            raise UsageError(
                f"this target has no form {self.form!r}",
                hint=f"Choose one of {known}." if known else "Leave --form out.",
            )
        return self if self.form else replace(self, form=forms[0])


def parse_pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Parse ``NAME=VALUE`` options.

    Raises:
        UsageError: One has no equals sign, or a name comes twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"one {option} is not NAME=VALUE")  # which may be a secret
        if name in found:
            raise UsageError(f"{option} {name} is given twice")
        found[name] = value
    return found


def parse_secrets(texts: Sequence[str]) -> tuple[SecretUse, ...]:
    """Parse ``VARIABLE=SECRET[:KEY]`` options.

    Raises:
        UsageError: One is malformed. The text is not repeated: it may be a secret by mistake.
    """
    uses = []
    for variable, rest in parse_pairs(texts, "--secret").items():
        secret, _, key = rest.partition(":")
        if _SECRET_ADDRESS.fullmatch(rest):
            uses.append(SecretUse(variable=variable, secret=rest, key=variable))
            continue
        if not _SECRET.fullmatch(secret) or (key and not _SECRET.fullmatch(key)):
            raise UsageError(
                f"--secret {variable}: what follows is not the name of a secret",
                hint="Write VARIABLE=SECRET[:KEY]; the value stays on the platform.",
            )
        uses.append(SecretUse(variable=variable, secret=secret, key=key or variable))
    return tuple(uses)


def _name_of(image: str) -> str:
    last = parse_reference(image).repository.rpartition("/")[2]
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:MAX_NAME].strip("-")
