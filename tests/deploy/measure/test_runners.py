"""Ways to start an unpacked image."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from zse.deploy.measure import runners
from zse.deploy.measure.runners import first_that_works
from zse.errors import MissingDependencyError, UsageError
from zse.oci.image.unpacked import RunnerError, UnpackedImage, find

CONFIG = {
    "Entrypoint": ["python3", "-I", "/opt/zse/boot.py"],
    "Env": ["A=1", "PORT=8000"],
    "User": "65532:65532",
}


@pytest.fixture
def image(tmp_path):
    rootfs = tmp_path / "rootfs"
    for name in (
        "opt/zse/boot.py",
        "usr/lib64/ld-linux-x86-64.so.2",
        "usr/lib/x86_64-linux-gnu/libc.so.6",
    ):
        (rootfs / name).parent.mkdir(parents=True, exist_ok=True)
        (rootfs / name).write_text("")
    return UnpackedImage(
        layout=tmp_path / "layout", tag="t", rootfs=rootfs, config=CONFIG, scratch=tmp_path
    )


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_bundle_has_the_images_user_environment_and_what_is_shown(image, monkeypatch, runtime):
    monkeypatch.setattr(runners, "find", lambda name: f"/bin/{name}")
    shown = replace(image, binds={"/dev/nvidia0": "/dev/null"})
    command = runners.RUNNERS[runtime](shown, [], {"PORT": "9"})
    assert command[0] == f"/bin/{runtime}"
    bundle = next(word for word in command if word.startswith("--bundle=")).removeprefix(
        "--bundle="
    )
    spec = json.loads(Path(bundle, "config.json").read_text())
    assert spec["process"]["user"] == {"uid": 65532, "gid": 65532}
    assert set(spec["process"]["env"]) == {"A=1", "PORT=9"}
    assert spec["mounts"][-1]["destination"] == "/dev/nvidia0"
    assert spec["root"]["readonly"]


def test_podman_is_given_a_whole_path_which_it_takes_for_no_images_name(image, monkeypatch):
    monkeypatch.setattr(runners, "find", lambda name: f"/bin/{name}")
    command = runners.podman(replace(image, layout=Path(".demo")), [], {})
    assert f"oci:{Path.cwd()}/.demo:t" in " ".join(command)


def test_a_user_by_name_is_no_number_for_a_bundle(image, monkeypatch):
    monkeypatch.setattr(runners, "find", lambda name: f"/bin/{name}")
    with pytest.raises(RunnerError, match="'nobody' is a name"):
        runners.runc(replace(image, config={"User": "nobody"}), [], {})


def test_runner_of_an_unknown_name_is_refused(image):
    with pytest.raises(UsageError, match="no runner 'nope'") as caught:
        first_that_works(image, "nope", lambda _: None)
    assert "bwrap" in caught.value.hint


def test_first_runner_that_starts_python_is_chosen(image, monkeypatch):
    said: list[str] = []

    def absent(*_):
        raise MissingDependencyError("absent is not installed")

    table = {
        "absent": absent,
        "broken": lambda *_: ["false"],
        "works": lambda *_: ["echo", "started"],
        "later": lambda *_: ["echo", "started"],
    }
    monkeypatch.setattr(runners, "RUNNERS", table)
    assert first_that_works(image, "", said.append) == "works"
    assert len(said) == 3
    assert first_that_works(image, "", said.append, order=["later", "works"]) == "later"


def test_machine_without_any_runner_is_told(image, monkeypatch):
    monkeypatch.setattr(runners, "RUNNERS", {"broken": lambda *_: ["false"]})
    with pytest.raises(RunnerError, match="nothing here"):
        first_that_works(image, "", lambda _: None)


def test_a_program_that_is_absent_is_named():
    with pytest.raises(MissingDependencyError, match="no-such-program"):
        find("no-such-program")


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="needs root, unshare")
def test_unshare_starts_a_program_in_a_root_of_its_own(image):
    """The root is this machine's own, bound to a folder: there is no image to unpack here."""
    config = {**CONFIG, "User": ""}
    rooted = replace(image, config=config)
    mounts = " && ".join(
        f"mount --rbind /{name} {image.rootfs}/{name}" for name in ("bin", "lib", "lib64", "usr")
    )
    for name in ("bin", "lib", "lib64", "usr", "dev", "proc"):
        (image.rootfs / name).mkdir(exist_ok=True)
    inner = runners.unshare_chroot(rooted, ["/bin/sh", "-c", "ls /; echo $PORT"], {"PORT": "9"})
    script = f'{mounts} && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *inner],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode and "permitted" in done.stderr:
        pytest.skip(f"mounts are not allowed here: {done.stderr.strip()}")
    assert done.stdout.split()[-1] == "9", done.stderr
    assert "opt" in done.stdout.split()
    assert "etc" not in done.stdout.split()
