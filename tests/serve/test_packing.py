"""The pack of a start's modules: what it holds, when it is used, and that sources win."""

from __future__ import annotations

import importlib
import os
import py_compile
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from zse import start_pack, start_patterns
from zse.serve import packing

NAMES = ("packed_thing", "packed_thing.inner", "packed_other")


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Modules of the test's own, imported from sources, and a place for their pack."""
    folder = tmp_path / "sources"
    (folder / "packed_thing").mkdir(parents=True)
    (folder / "packed_thing/__init__.py").write_text('"""A package."""\nfrom . import inner\n')
    (folder / "packed_thing/inner.py").write_text("WORD = 'first'\ndef fail():\n    return 1 / 0\n")
    (folder / "packed_other.py").write_text("WORD = 'other'\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(start_pack, "pack_path", lambda: str(tmp_path / "start.pack"))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(start_pack.asked, "is_set", True)
    py_compile.compile(start_pack.__file__)
    yield folder
    forget()


def forget():
    for name in NAMES:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def pack_of(*names) -> start_pack.Pack:
    """Import modules, pack them, forget them and use the pack."""
    imported = {name: importlib.import_module(name) for name in names}
    assert packing.refresh_pack(imported)
    forget()
    pack = start_pack.use_pack()
    assert pack is not None
    return pack


def test_modules_come_from_the_pack_as_they_come_from_their_sources(sources):
    pack = pack_of(*NAMES)
    assert set(pack.index) == set(NAMES)
    package = importlib.import_module("packed_thing")
    inner = importlib.import_module("packed_thing.inner")
    assert isinstance(inner.__loader__, start_pack.PackedLoader)
    assert inner.WORD == "first"
    assert inner.__file__ == str(sources / "packed_thing/inner.py")
    assert package.__path__ == [str(sources / "packed_thing")]
    assert package.__doc__ == "A package."
    with pytest.raises(ZeroDivisionError) as raised:
        inner.fail()
    assert raised.traceback[-1].path == sources / "packed_thing/inner.py"
    assert "return 1 / 0" in str(raised.traceback[-1].statement)


def test_a_source_that_changed_is_what_is_imported(sources):
    pack = pack_of(*NAMES)
    file = sources / "packed_other.py"
    file.write_text("WORD = 'changed'\n")
    assert importlib.import_module("packed_other").WORD == "changed"
    assert pack.stale == {"packed_other"}
    file.unlink()
    forget()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("packed_other")


def test_a_module_can_be_reloaded_when_its_code_was_let_go(sources):
    pack_of(*NAMES)
    other = importlib.import_module("packed_other")
    other.WORD = "else"
    assert importlib.reload(other).WORD == "other"


def test_a_pack_that_has_enough_stays_and_one_that_lacks_much_is_written_anew(sources):
    pack_of("packed_other")
    other = {"packed_other": importlib.import_module("packed_other")}
    assert not packing.refresh_pack(other)
    every = {name: importlib.import_module(name) for name in NAMES}
    assert packing.refresh_pack(every)
    sys.meta_path.pop(0)
    assert set(start_pack.use_pack().index) == set(NAMES)


def test_what_an_earlier_start_imported_stays_in_the_pack(sources):
    pack_of("packed_other")
    thing = {name: importlib.import_module(name) for name in NAMES[:2]}
    assert packing.refresh_pack(thing)
    sys.meta_path.pop(0)
    assert set(start_pack.use_pack().index) == set(NAMES)


@pytest.mark.parametrize("name", ["dont_write_bytecode", "pycache_prefix"])
def test_nothing_is_written_where_python_writes_no_byte_code(sources, tmp_path, monkeypatch, name):
    monkeypatch.setattr(sys, name, str(tmp_path / "elsewhere"))
    assert not packing.refresh_pack({"packed_other": importlib.import_module("packed_other")})
    assert not Path(start_pack.pack_path()).exists()


def test_nothing_is_written_by_a_process_that_reads_no_pack(sources, monkeypatch):
    monkeypatch.setattr(start_pack.asked, "is_set", False)
    assert not packing.refresh_pack({"packed_other": importlib.import_module("packed_other")})
    assert not Path(start_pack.pack_path()).exists()


def test_nothing_is_written_in_an_image_whose_byte_code_is_never_compared(
    sources, tmp_path, monkeypatch
):
    source = tmp_path / "start_pack.py"
    source.write_bytes(Path(start_pack.__file__).read_bytes())
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), invalidation_mode=mode)
    monkeypatch.setattr(start_pack, "__file__", str(source))
    assert not packing.refresh_pack({"packed_other": importlib.import_module("packed_other")})


def test_a_folder_that_cannot_be_written_to_is_no_error(sources, monkeypatch):
    monkeypatch.setattr(start_pack, "pack_path", lambda: "/proc/none/start.pack")
    assert not packing.refresh_pack({"packed_other": importlib.import_module("packed_other")})


def test_a_pack_that_others_may_write_to_is_not_used(sources):
    pack_of("packed_other")
    path = Path(start_pack.pack_path())
    for mode in (0o666, 0o664):
        path.chmod(mode)
        assert start_pack.use_pack() is None
    path.chmod(0o644)
    assert start_pack.use_pack() is not None


def test_a_pack_of_another_python_or_another_path_is_not_used(sources, monkeypatch):
    pack_of("packed_other")
    monkeypatch.setattr(sys, "path", ["/elsewhere", *sys.path])
    assert start_pack.use_pack() is None


@pytest.mark.parametrize("keep", [0, 5, 8, 40, -1])
def test_a_pack_that_was_cut_short_is_not_used(sources, keep):
    pack_of("packed_other")
    path = Path(start_pack.pack_path())
    path.write_bytes(path.read_bytes()[:keep])
    assert start_pack.use_pack() is None


def test_a_pack_of_nonsense_is_not_used(sources):
    path = Path(start_pack.pack_path())
    path.write_bytes(os.urandom(4000))
    path.chmod(0o644)
    assert start_pack.use_pack() is None


def test_the_reader_imports_nothing():
    code = """
    import sys
    before = set(sys.modules)
    import zse.start_pack
    print(*sorted(set(sys.modules) - before))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["__future__", "zse", "zse.start_pack"]


PATTERNS = [
    (r"(?P<key>[a-z]+)=(?P<value>\d{2,})|#.*$", int(re.MULTILINE)),
    (rb"\x00|(ab)?c*\Z", 0),
    (r"(?i:straße)|\w+?(?=\s)", int(re.IGNORECASE)),
    (r"[^\W\d_]+(?<!x)", 0),
]
TEXT = "ab=12 #c\nstrasse STRASSE x1 äö =3\nkey=2024"


@pytest.fixture
def patterns():
    made = start_patterns.Patterns(start_patterns.made_of(PATTERNS))
    made.use()
    re.purge()
    yield made
    made.leave()
    re.purge()


def found_by(pattern, flags):
    text = TEXT.encode() if isinstance(pattern, bytes) else TEXT
    compiled = re.compile(pattern, flags)
    matches = [(each.span(), each.groups(), each.groupdict()) for each in compiled.finditer(text)]
    return matches, compiled.flags, compiled.groups, dict(compiled.groupindex), compiled.pattern


def test_patterns_that_were_compiled_before_find_what_they_find_anyway(patterns):
    packed = [found_by(*each) for each in PATTERNS]
    assert [patterns.compile(*each) for each in PATTERNS] == [
        re.compile(*each) for each in PATTERNS
    ]
    patterns.leave()
    re.purge()
    assert packed == [found_by(*each) for each in PATTERNS]


def test_a_pattern_that_is_packed_is_not_taken_apart_again(patterns, monkeypatch):
    def refuse(*_):
        raise AssertionError("it was parsed")

    monkeypatch.setattr(patterns, "_usual", refuse)
    for each in PATTERNS:
        re.compile(*each)
    with pytest.raises(AssertionError):
        re.compile("another")


def test_other_flags_and_other_kinds_of_text_are_other_patterns(patterns):
    assert re.compile(r"\w+?(?=\s)").findall("a b ") == ["a", "b"]
    (pattern, flags), *_ = PATTERNS
    assert re.compile(pattern, flags | re.IGNORECASE).flags & re.IGNORECASE
    assert re.compile(pattern.encode(), 0).search(b"q=17").group("value") == b"17"


def test_patterns_of_a_start_come_from_its_pack(sources):
    (sources / "packed_other.py").write_text(
        "import re\nWORD = re.compile('(?:packed|word){2}x')\n"
    )
    importlib.import_module("packed_other")
    key = ("(?:packed|word){2}x", 0)
    assert key in start_patterns.asked_for()
    assert packing.refresh_pack({}, [key])
    pack = start_pack.use_pack()
    assert list(pack.compiled) == [key]
    assert not packing.refresh_pack({}, [key])
    assert packing.refresh_pack({}, [key, ("a new one", 0)])
    pack.patterns.leave()


def test_a_pattern_that_depends_on_the_locale_is_left_to_python():
    re.compile(rb"\w+", re.LOCALE)
    assert not any(flags & re.LOCALE for _, flags in start_patterns.asked_for())


def test_what_is_no_pattern_is_left_out():
    assert start_patterns.made_of([("(", 0), ("a", 0)]).keys() == {("a", 0)}
