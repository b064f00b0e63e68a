from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from zse.errors import NotFoundError
from zse.format import convert_model
from zse.format.reader import ZSEReader
from zse.quantize import writing
from zse.quantize.locate import locate_model
from zse.settings import Settings, load_settings


def test_file_is_returned_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m.zse"
    path.write_bytes(b"anything")
    assert locate_model(path, Settings(cache_dir=tmp_path / "cache")) == path
    assert not (tmp_path / "cache").exists()


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"absent\.zse"):
        locate_model(tmp_path / "absent.zse", load_settings())


def test_folder_is_converted_once(llama_folder: Path, tmp_path: Path) -> None:
    first = locate_model(llama_folder, Settings(cache_dir=tmp_path), quant="int8")
    written = first.stat().st_mtime_ns
    assert locate_model(llama_folder, Settings(cache_dir=tmp_path), quant="int8") == first
    assert first.stat().st_mtime_ns == written
    with ZSEReader(first) as reader:
        assert reader.entry("layers.0.o.weight").scheme == "int8"
        assert reader.header.provenance["source"] == "little-llama"


def test_quantization_is_part_of_the_key(llama_folder: Path, tmp_path: Path) -> None:
    paths = {
        locate_model(llama_folder, Settings(cache_dir=tmp_path), quant=q)
        for q in ("int4", "bf16", None)
    }
    assert len(paths) == 2


def test_changed_checkpoint_is_converted_again(make_checkpoint, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    first = locate_model(folder, Settings(cache_dir=tmp_path / "cache"))
    (folder / "generation_config.json").write_text('{"eos_token_id": 5}')
    assert locate_model(folder, Settings(cache_dir=tmp_path / "cache")) != first


def test_callers_at_the_same_time_convert_once(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    real = writing.convert_source

    def counting(*arguments: object, **keywords: object) -> object:
        calls.append(arguments)
        return real(*arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(writing, "convert_source", counting)
    with ThreadPoolExecutor(4) as pool:
        paths = set(
            pool.map(lambda _: locate_model(llama_folder, Settings(cache_dir=tmp_path)), range(4))
        )
    assert len(paths) == 1
    assert len(calls) == 1


def test_builtin_name_becomes_an_int8_file(tmp_path: Path) -> None:
    path = locate_model("tiny", Settings(cache_dir=tmp_path))
    with ZSEReader(path) as reader:
        reader.verify()
        assert reader.header.provenance["source"] == "tiny"
        assert reader.entry("layers.0.o.weight").scheme == "int8"
        assert reader.has_section("tokenizer.json")


def test_the_builtin_comes_ready_and_is_what_converting_it_gives(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; sys.modules['torch'] = None\n"
        "from zse.quantize.locate import locate_model; from zse.settings import Settings\n"
        "print(locate_model('tiny', Settings(cache_dir=pathlib.Path(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    convert_model("tiny", tmp_path / "tiny.zse", quantization="int8")
    assert Path(done.stdout.strip()).read_bytes() == (tmp_path / "tiny.zse").read_bytes()


def test_a_builtin_of_another_scheme_is_converted(tmp_path: Path) -> None:
    with ZSEReader(locate_model("tiny", Settings(cache_dir=tmp_path), quant="int4")) as reader:
        assert reader.entry("layers.0.o.weight").scheme == "int4"


def test_a_model_that_was_converted_before_is_found_without_torch(
    llama_folder: Path, tmp_path: Path
) -> None:
    target = locate_model(llama_folder, Settings(cache_dir=tmp_path))
    code = (
        "import sys, pathlib, zse.quantize.locate as b; from zse.settings import Settings\n"
        "folder, cache = map(pathlib.Path, sys.argv[1:])\n"
        "print(b.locate_model(folder, Settings(cache_dir=cache)), 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(llama_folder), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(target), "False"]
