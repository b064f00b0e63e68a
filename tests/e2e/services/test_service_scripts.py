"""The scripts that install, start and stop the real services, used as a person would."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "services"


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / name), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_installing_again_does_nothing() -> None:
    done = script("service_packages.py", "install")
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing" in done.stderr
    assert script("service_packages.py", "missing").stdout.strip() == ""


def test_the_s3_server_outlives_its_start_command_and_ends_with_stop(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    try:
        started = script("ceph_s3.py", "start", str(folder))
        assert started.returncode == 0, started.stderr
        lines = [line.removeprefix("export ") for line in started.stdout.splitlines()]
        variables = dict(line.split("=", 1) for line in lines)
        assert status_of(variables["AWS_ENDPOINT_URL_S3"]) == 200
        assert script("ceph_s3.py", "start", str(folder)).returncode == 1
    finally:
        stopped = script("ceph_s3.py", "stop", str(folder))
    assert (stopped.returncode, folder.exists()) == (0, False)
    with pytest.raises(urllib.error.URLError):
        status_of(variables["AWS_ENDPOINT_URL_S3"])


def test_the_registry_outlives_its_start_command_and_ends_with_stop(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    try:
        started = script("oci_registry.py", "start", str(folder))
        assert started.returncode == 0, started.stderr
        address = started.stdout.strip()
        assert status_of(f"http://{address}/v2/") == 200
    finally:
        stopped = script("oci_registry.py", "stop", str(folder))
    assert (stopped.returncode, folder.exists()) == (0, False)
    with pytest.raises(urllib.error.URLError):
        status_of(f"http://{address}/v2/")


@pytest.mark.parametrize("name", ["ceph_s3.py", "oci_registry.py"])
def test_stop_touches_no_folder_that_it_did_not_make(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    done = script(name, "stop", str(tmp_path))
    assert (done.returncode, (tmp_path / "mine").exists()) == (1, True)
    assert "holds no" in done.stderr
    assert script(name).returncode == 2


def test_an_image_goes_through_the_registry_unchanged(registry: str, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    digest = write_empty_image(layout)
    target = f"docker://{registry}/test/empty:1"
    copy = ["skopeo", "copy", "-q", "--preserve-digests"]
    subprocess.run([*copy, "--dest-tls-verify=false", f"oci:{layout}:1", target], check=True)
    raw = subprocess.run(
        ["skopeo", "inspect", "--raw", "--tls-verify=false", target],
        check=True,
        capture_output=True,
    ).stdout
    assert hashlib.sha256(raw).hexdigest() == digest


def write_empty_image(layout: Path) -> str:
    """Write the smallest OCI layout there is; return its manifest's digest."""
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(media_type: str, document: dict[str, object]) -> dict[str, object]:
        data = json.dumps(document).encode()
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{name}", "size": len(data)}

    kind = "application/vnd.oci.image"
    config: dict[str, object] = {"architecture": "amd64", "os": "linux", "config": {}}
    config["rootfs"] = {"type": "layers", "diff_ids": []}
    described = put(f"{kind}.config.v1+json", config)
    manifest = {"schemaVersion": 2, "mediaType": f"{kind}.manifest.v1+json"}
    entry = put(manifest["mediaType"], {**manifest, "config": described, "layers": []})
    entry["annotations"] = {"org.opencontainers.image.ref.name": "1"}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return str(entry["digest"]).removeprefix("sha256:")
