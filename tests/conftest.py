"""Rules for the whole suite: a clean environment, GPU tests, and tests that need real services."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Read when a kernel's module is imported, by whichever test or conftest comes first.
os.environ["TRITON_INTERPRET"] = "1"
# Read when torch is: threads that wait for each other sleep. Spinning, they take the core that the
# other needs, and on a machine with other work a test takes twenty times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "services"))
sys.path.insert(0, str(ROOT / "tests" / "support"))

import ceph_s3  # noqa: E402
import oci_registry  # noqa: E402
import service_packages  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ceph_s3 import S3Server

EXIT_NO_GPU = 3
# Variables that change what the code under test does; a developer's own must not leak in.
SCRUBBED_PREFIXES = ("ZSE_", "AWS_", "HF_", "S3_")
SCRUBBED = frozenset(
    {"PORT", "SOURCE_DATE_EPOCH", "NO_COLOR", "REGISTRY_AUTH_FILE", "DOCKER_CONFIG"}
)
KEPT = frozenset(
    {
        "ZSE_REQUIRE_GPU",
        "ZSE_NIGHTLY",
        "ZSE_REAL",
        "ZSE_REAL_MODELS",
        "ZSE_KERNELS",
        "ZSE_TEST_SYSTEM",
        "ZSE_VENV",
        "HF_HUB_OFFLINE",
    }
)


def pytest_configure(config: pytest.Config) -> None:
    """Scrub the environment before anything is imported from zse, session fixtures included."""
    for name in list(os.environ):
        if name not in KEPT and (name in SCRUBBED or name.startswith(SCRUBBED_PREFIXES)):
            del os.environ[name]

    load_hypothesis_profile()
    os.environ["AWS_CONFIG_FILE"] = os.devnull
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    cache = tempfile.TemporaryDirectory(prefix="zse-tests-cache-")
    config.add_cleanup(cache.cleanup)
    os.environ["ZSE_CACHE_DIR"] = cache.name
    os.environ["ZSE_HOME"] = f"{cache.name}/home"  # which holds no keys
    os.environ["XDG_CONFIG_HOME"] = cache.name  # which holds no settings
    os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # of the tools
    os.environ["HOME"] = f"{cache.name}/nobody"
    Path(os.environ["HOME"]).mkdir()


def load_hypothesis_profile() -> None:
    """Generate the same examples in every run, and new ones by night; none is held to a time.

    On a busy machine an example may take seconds, and so may making one.
    """
    try:
        import hypothesis  # which machines do without that test kernels
    except ModuleNotFoundError:
        return
    hypothesis.settings.register_profile(
        "suite",
        deadline=None,
        derandomize=os.environ.get("ZSE_NIGHTLY") != "1",
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("suite")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Fail a test that wrote where a developer's keys and audit log are."""
    yield
    written = Path.home() / ".zse"
    if written.exists():
        names = sorted(str(path.relative_to(written)) for path in written.rglob("*"))
        shutil.rmtree(written)
        pytest.fail(f"this test, or a server of it, wrote into ~/.zse: {names}")


@pytest.hookimpl(trylast=True)  # after -m and -k have taken out what was not asked for
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, unless it was told that it must."""
    begin_with_what_takes_long(items)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not has_gpu():
        if os.environ.get("ZSE_REQUIRE_GPU") == "1":
            pytest.exit("ZSE_REQUIRE_GPU=1, but there is no GPU", returncode=EXIT_NO_GPU)
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))
    skip_unless_asked(items, "nightly", "ZSE_NIGHTLY", "runs by night; now with ZSE_NIGHTLY=1")
    skip_unless_asked(items, "real", "ZSE_REAL", "needs real models; now with scripts/test --real")
    system_items = [item for item in items if item.get_closest_marker("system")]
    if system_items and not config.option.collectonly and (reason := prepare_system()):
        for item in system_items:
            item.add_marker(pytest.mark.skip(reason=reason))


def skip_unless_asked(items: list[pytest.Item], mark: str, variable: str, reason: str) -> None:
    """Skip what is marked unless a variable is 1."""
    if os.environ.get(variable) != "1":
        for item in items:
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def begin_with_what_takes_long(items: list[pytest.Item]) -> None:
    """Put files with slow tests first, in their order: processes that share a suite end together.

    A file of one long test that began last would be waited for by all of them.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def group_of(item: pytest.Item) -> str:
    """Return what runs in one process when several share the suite (``-n``).

    The tests of a file share fixtures; those of the real services share one server of each.
    """
    return "system" if item.get_closest_marker("system") else item.path.as_posix()


def has_gpu() -> bool:
    """Whether the NVIDIA driver shows a device; nothing is initialised by asking."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def install_browser() -> None:
    """Install Chromium where there is none; tests that need it say what is missing."""
    import browser  # and websockets, which machines do without that test kernels

    if browser.chromium() is None:
        with contextlib.suppress(service_packages.ServiceError):
            service_packages.install(service_packages.BROWSER_PACKAGES)


def prepare_system() -> str:
    """Install the real services when ZSE_TEST_SYSTEM=1; return why they cannot be used, or ''."""
    if os.environ.get("ZSE_TEST_SYSTEM") == "1":
        try:
            service_packages.install()
        except service_packages.ServiceError as error:
            pytest.exit(f"ZSE_TEST_SYSTEM=1, but {error}", returncode=1)
        install_browser()
        return ""
    if reason := service_packages.cannot_install():
        return reason
    if missing := service_packages.missing_packages():
        return f"packages missing: {' '.join(missing)}; ZSE_TEST_SYSTEM=1 installs them"
    return ""


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server on loopback, one for the session. Tests that use it are marked system."""
    with ceph_s3.running(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The ``host:port`` of a real image registry on loopback (plain HTTP), one for the session."""
    with oci_registry.running(tmp_path_factory.mktemp("registry") / "server") as address:
        yield address


@pytest.fixture
def s3_bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket; the AWS variables of this test point at its server."""
    import secrets

    from s3_clients import default_client

    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    bucket = f"test-{secrets.token_hex(6)}"
    default_client().create_bucket(Bucket=bucket)
    return bucket


@pytest.fixture
def unread_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """No registry is asked what the image of a deployment says of itself."""
    from zse.deploy import image_look
    from zse.oci.errors import RegistryError

    def refuse(reference: str, **_: object) -> None:
        raise RegistryError(f"no test asks for {reference}")

    monkeypatch.setattr(image_look, "read_image_facts", refuse)
