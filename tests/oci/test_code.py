from __future__ import annotations

from zse.oci.code import code_entries, entries_digest
from zse.oci.recipe import load_recipe, recipe_folder
from zse.oci.tar import file_of_bytes


def test_serving_code_goes_in_and_tools_stay_out():
    paths = {entry.path for entry in code_entries(load_recipe(recipe_folder("cpu")))}
    assert {"opt/zse/boot.py", "opt/zse/healthcheck.py", "opt/zse/app/zse/settings.py"} <= paths
    for absent in ("/oci/", "/cli/", "/quantize/", "__pycache__", "builtin_tiny"):
        assert not any(absent in path for path in paths), absent


def test_digest_follows_path_mode_and_content():
    entries = [
        file_of_bytes("a", b"1"),
        file_of_bytes("b", b"1"),
        file_of_bytes("a", b"2"),
        file_of_bytes("a", b"1", mode=0o755),
    ]
    assert len({entries_digest([entry]) for entry in entries}) == 4
    assert entries_digest(entries[:2]) == entries_digest(entries[1::-1])
