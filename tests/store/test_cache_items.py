"""Everything in the cache folder is of a kind, and a kind that is used is not removed."""

from __future__ import annotations

import ast
import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import zse
from zse.errors import DiskFullError, StoreError
from zse.settings import Settings
from zse.store.cache_items import (
    filling,
    find_items,
    is_item_used,
    remove_idle_locks,
    remove_item,
    shrink,
)
from zse.store.cache_kinds import KINDS
from zse.store.cache_use import TAG_NAME, make_cache_folder, usable, using

SOURCES = Path(zse.__file__).parent
INSIDE = {"oci": "images/", "build": "triton/"}
"""Packages whose own cache folder is one of the areas."""
EXAMPLES = (
    "models/" + "0" * 32 + ".zse",
    "uploads/0123/model.zse.partial",
    "images/layers/blobs/0123",
    "images/layers/keys/0123",
    "images/downloads/wheels/0123/a.whl",
    "images/tmpabc/layout/blobs/x",
    "kernels/sm_90-0123.zkp",
    "triton/ABC/kernel.cubin",
    "triton/finished/0123",
    "pushes/0123.json",
    "tuned/h100.json",
)


def fill(cache_dir: Path, names: tuple[str, ...] = EXAMPLES) -> None:
    """Write files of 1000 bytes, each used a second after the one before."""
    make_cache_folder(cache_dir)
    for second, name in enumerate(names):
        path = cache_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000))
        os.utime(path, (second, second))
        if len(Path(name).parts) == 3 and name.startswith(("uploads", "triton")):
            os.utime(path.parent, (second, second))


def written_below_the_cache_folder() -> set[str]:
    """Return every folder that the sources name below ``cache_dir``."""
    found = set()
    texts = ((path, path.read_text()) for path in SOURCES.rglob("*.py"))
    for path, text in texts:
        names_one = "cache_dir" in text or "filling(" in text
        for node in ast.walk(ast.parse(text)) if names_one else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id in ("using", "filling") and isinstance(node.args[1], ast.Constant):
                    found.add(str(node.args[1].value))
            elif isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant):
                left = getattr(node.left, "attr", getattr(node.left, "id", ""))
                if left == "cache_dir" and isinstance(node.op, ast.Div):
                    inside = (INSIDE.get(part, "") for part in path.parent.parts)
                    found.add("".join(inside) + str(node.right.value))
    return found


def test_every_folder_that_the_product_writes_is_of_a_kind() -> None:
    found = written_below_the_cache_folder()
    assert {"images", "triton", "kernels", "uploads", "pushes", "tuned", "images/layers"} <= found
    patterns = [pattern for kind in KINDS for pattern in kind.items]
    unknown = [name for name in found if not any(p.startswith(f"{name}/") for p in patterns)]
    assert unknown == []


def test_what_a_killed_build_of_an_image_leaves_has_a_name_that_is_found() -> None:
    patterns = [pattern for kind in KINDS for pattern in kind.items]
    for path in (SOURCES / "oci").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if getattr(getattr(node, "func", None), "attr", "") != "TemporaryDirectory":
                continue
            named = {word.arg: word.value for word in node.keywords}
            if "dir" in named:
                prefix = ast.literal_eval(named["prefix"]) if "prefix" in named else "tmp"
                assert any(fnmatchcase(f"images/{prefix}x", each) for each in patterns), path


def test_all_of_it_is_found_and_all_of_it_can_go(tmp_path: Path) -> None:
    fill(tmp_path)
    items = find_items(tmp_path)
    assert sum(item.size_bytes for item in items) == 1000 * len(EXAMPLES)
    assert {item.kind for item in items} == {kind.name for kind in KINDS}
    assert all(remove_item(tmp_path, item) for item in items)
    assert [path.name for path in tmp_path.iterdir()] == [TAG_NAME]


def test_what_is_not_of_a_kind_is_neither_shown_nor_removed(tmp_path: Path) -> None:
    fill(tmp_path, ("notes.txt", "models/mine.zse", "photos/a.jpg"))
    assert find_items(tmp_path) == []
    assert shrink(tmp_path, 0) == []


def test_a_folder_that_is_used_is_kept_and_its_lock_with_it(tmp_path: Path) -> None:
    fill(tmp_path)
    with using(tmp_path, "images"), using(tmp_path, "images"):
        items = find_items(tmp_path)
        used = {item.kind for item in items if is_item_used(tmp_path, item)}
        assert used == {"layers", "downloads", "scratch"}
        left = {item.kind for item in items if not remove_item(tmp_path, item)}
        assert left == used
        remove_idle_locks(tmp_path)
        assert (tmp_path / "images.lock").exists()
    assert all(remove_item(tmp_path, item) for item in find_items(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [TAG_NAME]


def test_a_file_that_is_open_is_kept(tmp_path: Path) -> None:
    fill(tmp_path, ("kernels/sm_90.zkp", "kernels/.sm_80.zkp.writing"))
    with (tmp_path / "kernels/.sm_80.zkp.writing").open("ab"):
        items = find_items(tmp_path)
        assert [is_item_used(tmp_path, item) for item in items] == [False, True]
        assert [remove_item(tmp_path, item) for item in items] == [True, False]
    assert [remove_item(tmp_path, item) for item in find_items(tmp_path)] == [True]


def test_locks_that_nobody_holds_go(tmp_path: Path) -> None:
    with using(tmp_path, "triton"):
        with using(tmp_path, "triton"):
            pass
        assert (tmp_path / "triton.lock").exists()
    assert not (tmp_path / "triton.lock").exists()
    (tmp_path / "images.lock").touch()  # whoever held it was killed
    remove_idle_locks(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"triton", TAG_NAME}


def test_a_folder_that_others_began_is_used_without_a_tag_and_nothing_in_it_goes(
    tmp_path: Path,
) -> None:
    theirs = tmp_path / "uploads" / "photo.jpg"
    theirs.parent.mkdir()
    theirs.write_bytes(bytes(1000))
    with filling(Settings(cache_dir=tmp_path, cache_gib=1 / (1 << 30)), "kernels") as folder:
        (folder / "sm_90.zkp").write_bytes(bytes(1000))
    assert not (tmp_path / TAG_NAME).exists()
    assert shrink(tmp_path, 0) == []
    assert {item.kind for item in find_items(tmp_path)} == {"uploads", "kernels"}
    (tmp_path / TAG_NAME).write_text("a file of that name says nothing")
    assert shrink(tmp_path, 0) == []


def test_a_disk_of_its_own_with_tuned_tables_is_begun_by_zse(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "tuned").mkdir()
    with using(tmp_path, "kernels"):
        tag = (tmp_path / TAG_NAME).read_bytes()
    assert tag.startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")


def test_the_limit_counts_everything_and_never_removes_the_users_work(
    tmp_path: Path,
) -> None:
    fill(tmp_path, ("tuned/h100.json", "triton/A", "kernels/p.zkp", "images/layers/blobs/b"))
    settings = Settings(cache_dir=tmp_path, cache_gib=3000 / (1 << 30))
    with filling(settings, "triton") as folder:
        (folder / "B").write_bytes(bytes(1000))
    assert [(item.kind, item.path.name) for item in find_items(tmp_path)] == [
        ("tuned", "h100.json"),
        ("layers", "b"),
        ("triton", "B"),
    ]


def test_a_cache_folder_that_is_a_file_is_one_sentence_wherever_it_is_met(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    for use in (lambda: find_items(path), lambda: using(path / "below", "images").__enter__()):
        with pytest.raises(StoreError, match="cannot be used: Not a directory") as caught:
            use()
        assert "Set ZSE_CACHE_DIR to a folder" in caught.value.hint


def test_errors_about_other_folders_and_full_disks_keep_their_words(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), usable(tmp_path / "cache"):
        Path("/elsewhere/absent").read_bytes()
    with pytest.raises(DiskFullError, match="out/x") as caught, usable(tmp_path / "cache"):
        raise DiskFullError("no room left to write out/x", hint="Use -o.")
    assert caught.value.hint == "Use -o."
    with pytest.raises(DiskFullError) as caught, usable(tmp_path / "cache"):
        raise DiskFullError(f"no room left to write {tmp_path}/cache/x", hint="Use -o.")
    assert "ZSE_CACHE_DIR" in caught.value.hint
