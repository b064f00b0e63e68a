"""What pages are made of: light, known to the byte, and nothing else of this machine."""

import hashlib
import tomllib

from zse.serve.ui.assets import FOLDER, all_assets

VENDOR = FOLDER / "vendor"


def test_all_files_of_all_pages_together_are_under_300_kilobytes():
    assert sum(len(asset.content) for asset in all_assets().values()) < 300_000


def test_what_others_made_is_what_the_table_says_with_its_licence():
    rows = tomllib.loads((VENDOR / "vendored.toml").read_text())
    served = {name.removeprefix("vendor/") for name in all_assets() if name.startswith("vendor/")}
    assert set(rows) == served
    licences = (VENDOR / "LICENSES.txt").read_text()
    for name, row in rows.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == row["sha256"]
        assert row["integrity"].startswith("sha512-")
        assert row["licence"] in ("0BSD", "MIT", "OFL-1.1")
    for owner in ("htmx", "Alpine.js", "uPlot", "marked", "Montserrat"):
        assert f"{owner} ========" in licences


def test_a_file_is_sent_again_only_when_it_has_changed(call):
    first = call("GET", "/ui/assets/base.css")
    assert first.headers["content-type"] == "text/css; charset=utf-8"
    tag = first.headers["etag"]
    again = call("GET", "/ui/assets/base.css", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_nothing_but_the_files_of_the_table_is_served(call):
    for name in ("../pages.py", "%2e%2e/pages.py", "vendor/vendored.toml", "", "base.css/", "/"):
        assert call("GET", f"/ui/assets/{name}").status_code == 404
