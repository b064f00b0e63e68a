"""install.sh: a release or a wheel becomes a command of one user's, and leaves again."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import tomllib
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).resolve().parents[2] / "install.sh"
WHEEL = "zse_toolkit-9.9.9-py3-none-any.whl"
PROGRAM = "def main():\n    print('zse, version 9.9.9')\n"


def make_wheel(path: Path) -> None:
    """Write a wheel of the right name that depends on nothing."""
    info = "zse_toolkit-9.9.9.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("zse_small.py", PROGRAM)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: zse-toolkit\nVersion: 9.9.9\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\nzse = zse_small:main\n")
        wheel.writestr(f"{info}/RECORD", "")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def releases(tmp_path: Path) -> Iterator[str]:
    """Return the address of a server with release 9.9.9, whose files lie in ``served``."""
    folder = tmp_path / "served/v9.9.9"
    folder.mkdir(parents=True)
    make_wheel(folder / WHEEL)
    digest = hashlib.sha256((folder / WHEEL).read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest}  {WHEEL}\n")
    handler = partial(Quiet, directory=str(tmp_path / "served"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def install(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).resolve().parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "HOME": str(tmp_path), "PIP_NO_INDEX": "1", "NO_PROXY": "*"}
    return subprocess.run(
        ["sh", str(SCRIPT), "--prefix", str(tmp_path / "user"), *words],
        env={**os.environ, **variables},
        check=False,
        capture_output=True,
        text=True,
    )


def files_of(tmp_path: Path) -> list[Path]:
    return [*(tmp_path / "user").rglob("*")] if (tmp_path / "user").exists() else []


def test_a_release_is_installed_replaced_and_removed(tmp_path: Path, releases: str) -> None:
    done = install(tmp_path, "--version", "v9.9.9", "--from", releases)
    assert done.returncode == 0, done.stderr
    assert "installed: zse, version 9.9.9" in done.stderr
    command = tmp_path / "user/bin/zse"
    assert subprocess.check_output([command], text=True) == "zse, version 9.9.9\n"

    broken = tmp_path / "zse_toolkit-10.0.0-py3-none-any.whl"
    broken.write_bytes(b"no wheel")
    assert install(tmp_path, "--wheel", str(broken)).returncode == 8
    assert subprocess.check_output([command], text=True) == "zse, version 9.9.9\n"

    assert install(tmp_path, "--uninstall").returncode == 0
    assert {path.name for path in files_of(tmp_path)} == {"bin", "share"}
    assert install(tmp_path, "--uninstall").returncode == 3


def test_a_wheel_of_another_digest_is_not_installed(tmp_path: Path, releases: str) -> None:
    with (tmp_path / "served/v9.9.9" / WHEEL).open("ab") as file:
        file.write(b"more")
    done = install(tmp_path, "--version", "9.9.9", "--from", releases)
    assert done.returncode == 6
    assert "do not use it" in done.stderr
    assert files_of(tmp_path) == []


def test_a_wheel_that_no_digest_is_known_of_is_not_installed(tmp_path: Path, releases: str) -> None:
    (tmp_path / "served/v9.9.9/SHA256SUMS").write_text("")
    assert install(tmp_path, "--version", "9.9.9", "--from", releases).returncode == 6
    assert files_of(tmp_path) == []


def test_what_is_of_others_is_not_replaced(tmp_path: Path) -> None:
    make_wheel(tmp_path / WHEEL)
    link = tmp_path / "user/bin/zse"
    link.parent.mkdir(parents=True)
    link.write_text("mine")
    done = install(tmp_path, "--wheel", str(tmp_path / WHEEL))
    assert done.returncode == 6
    assert "is something else" in done.stderr
    assert link.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "which release?"),
        (["--version"], 2, "--version needs a value"),
        (["--version", "1;rm", "--from", "https://x"], 2, "is no version"),
        (["--version", "1.0.0"], 2, "where are the releases?"),
        (["--version", "1.0.0", "--from", "http://example.com"], 2, "is no https address"),
        (["--wheel", "none.whl"], 3, "there is no file none.whl"),
        (["--wheel", str(SCRIPT), "--extras", "a b"], 2, "is no list of extras"),
        (["--dance"], 2, "unknown option --dance"),
        (["--wheel", str(SCRIPT), "--prefix", "here"], 2, "is no absolute path"),
    ],
)
def test_wrong_words_do_nothing(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    done = install(tmp_path, *words)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert "hint: " in done.stderr
    assert files_of(tmp_path) == []


@pytest.mark.parametrize(
    ("extras", "is_asked"), [("", False), ("s3,rag", False), ("convert", True), ("s3,hf", True)]
)
def test_the_index_of_torch_is_asked_only_for_what_holds_torch(tmp_path, extras, is_asked):
    make_wheel(tmp_path / WHEEL)
    words = [
        "--wheel",
        str(tmp_path / WHEEL),
        "--dry-run",
        *(["--extras", extras] if extras else []),
    ]
    done = install(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    pip = next(line for line in done.stderr.splitlines() if "pip install" in line)
    assert ("--extra-index-url https://download.pytorch.org/whl/cpu" in pip) == is_asked


def test_every_extra_that_holds_torch_is_known_to_the_script():
    project = tomllib.loads((SCRIPT.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def holds_torch(name: str) -> bool:
        inner = [re.search(r"^zse-toolkit\[(.*)\]", one) for one in extras[name]]
        below = [each for one in inner if one for each in one[1].split(",")]
        return any(one.startswith("torch") for one in extras[name]) or any(map(holds_torch, below))

    listed = re.search(r"case ,\$extras, in (.*)\) echo", SCRIPT.read_text())
    assert listed is not None
    assert set(re.findall(r"\*,([a-z-]+),\*", listed[1])) == set(filter(holds_torch, extras))


def test_a_dry_run_does_nothing(tmp_path: Path) -> None:
    make_wheel(tmp_path / WHEEL)
    done = install(tmp_path, "--wheel", str(tmp_path / WHEEL), "--dry-run")
    assert done.returncode == 0
    assert f"{WHEEL}" in done.stderr
    assert files_of(tmp_path) == []


@pytest.mark.parametrize(
    ("address", "schemes"), [("https://releases.example", "=https"), ("http://localhost:1", None)]
)
def test_https_leads_to_nothing_that_others_can_write_to(tmp_path, address, schemes):
    done = install(tmp_path, "--version", "9.9.9", "--from", address, "--dry-run")
    assert f"--proto {schemes or '=https,http'} -o" in done.stderr


@pytest.fixture
def secure_releases(tmp_path: Path) -> Iterator[str]:
    """Return an https address with release 9.9.9 behind ``/moved``; ``/weak`` leads to http."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    written = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *named, *written], check=True, capture_output=True)
    folder = tmp_path / "served/v9.9.9"
    folder.mkdir(parents=True)
    (folder / WHEEL).write_bytes(b"no wheel")
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  {WHEEL}\n")

    class Moved(Quiet):
        def do_GET(self) -> None:
            places = {"moved": "", "further": "/moved", "weak": f"http://localhost:{port}"}
            _, first, rest = self.path.split("/", 2)
            if first not in places:
                super().do_GET()
                return
            self.send_response(302)
            self.send_header("Location", f"{places[first]}/{rest}")
            self.end_headers()

    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Moved, directory=str(tmp_path / "served"))
    )
    port = server.server_address[1]
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://localhost:{port}"
    server.shutdown()
    server.server_close()


def install_by_wget(tmp_path: Path, address: str) -> subprocess.CompletedProcess[str]:
    """Run the script where there is wget and no curl."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in [
        "awk",
        "cut",
        "mktemp",
        "rm",
        "sed",
        "sh",
        "sha256sum",
        "tail",
        "tr",
        "uname",
        "wget",
    ]:
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"there is no {name} here")
        (tools / name).symlink_to(found)
    (tools / "python3").symlink_to(Path(sys.executable).resolve())
    (tmp_path / "wgetrc").write_text(f"ca_certificate = {tmp_path / 'cert.pem'}\n")
    words = ["--version", "9.9.9", "--from", address, "--prefix", str(tmp_path / "user")]
    variables = {"PATH": str(tools), "WGETRC": str(tmp_path / "wgetrc"), "NO_PROXY": "*"}
    return subprocess.run(
        ["sh", str(SCRIPT), *words],
        env={"HOME": str(tmp_path), "no_proxy": "*", **variables},
        check=False,
        capture_output=True,
        text=True,
    )


def test_wget_follows_no_redirect_from_https_to_http(tmp_path: Path, secure_releases: str) -> None:
    done = install_by_wget(tmp_path, f"{secure_releases}/weak")
    assert done.returncode == 8, done.stderr
    assert "which is no https address" in done.stderr
    assert files_of(tmp_path) == []


def test_wget_follows_redirects_that_stay_within_https(
    tmp_path: Path, secure_releases: str
) -> None:
    done = install_by_wget(tmp_path, f"{secure_releases}/further")
    assert done.returncode == 6, done.stderr  # what it fetched has not the release's digest
    assert files_of(tmp_path) == []
