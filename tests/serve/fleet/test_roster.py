"""What --models, --pin and MODEL mean together."""

import shutil
from dataclasses import replace

import pytest

from zse.errors import UsageError
from zse.serve.fleet.roster import roster_of, with_start_model
from zse.server_options import FleetOptions, ServeOptions
from zse.settings import load_settings


@pytest.fixture
def folder(tmp_path):
    for name in ("b.zse", "a.zse", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def names(*texts, model="tiny", **fields):
    options = FleetOptions(models=tuple(map(str, texts)), **fields)
    return [one.name for one in roster_of(ServeOptions(model=model, fleet=options))]


def test_a_folder_names_its_files(folder):
    assert names(folder) == ["a", "b"]


@pytest.mark.parametrize("name", ["default", "a\nb", "a\x1b[31m"])
def test_a_file_of_a_folder_has_a_name_that_requests_and_logs_can_hold(folder, name):
    (folder / f"{name}.zse").write_bytes(b"")
    with pytest.raises(UsageError, match="names a model"):
        names(folder)


def test_single_models_have_names_of_their_own(folder):
    assert names(f"x={folder}/a.zse", f"{folder}/b.zse", "t=tiny") == ["x", "b", "t"]


def test_the_server_begins_with_the_model_that_is_given(folder):
    assert names(folder, model="b") == ["b", "a"]
    assert names(folder, model=str(folder / "b.zse")) == ["b", "a"]
    assert names(folder, model="s3://bucket/c.zse") == ["c", "a", "b"]


def test_it_begins_with_what_is_pinned_else(folder):
    assert names(folder, pins=("b",)) == ["b", "a"]


def test_without_models_the_one_is_all():
    assert names(model="/models/x.zse") == ["x"]


@pytest.mark.parametrize(
    ("texts", "fields", "said"),
    [
        (["/no/such.zse"], {}, "which is not there"),
        (["/no/such/folder"], {}, "which is not there"),
        (["a=./no-such-checkpoint"], {}, "which is not there"),
        (["EMPTY"], {}, "without .zse files"),
        (["FOLDER", "a=tiny"], {}, "two models named 'a'"),
        (["FOLDER"], {"pins": ("c",)}, "--pin names 'c'"),
        (["FOLDER"], {"pins": ("a",), "max_resident": 1}, "leave no room"),
        (["default=tiny"], {}, "names a model 'default'"),
    ],
)
def test_what_cannot_be_meant_is_refused(folder, texts, fields, said):
    empty = folder / "empty"
    empty.mkdir()
    given = [text.replace("FOLDER", str(folder)).replace("EMPTY", str(empty)) for text in texts]
    with pytest.raises(UsageError, match=said):
        names(*given, **fields)


def test_a_pin_without_models_is_refused():
    options = ServeOptions(fleet=FleetOptions(pins=("tiny",)))
    with pytest.raises(UsageError, match="--pin names 'tiny', and no models come and go"):
        with_start_model(replace(load_settings(), serve=options))


def test_another_model_of_a_name_cannot_be_the_one_that_the_server_begins_with(folder):
    with pytest.raises(UsageError, match="two models named 'a'"):
        names(folder, model="s3://bucket/a.zse")


def test_two_files_of_one_name_are_refused(folder):
    (folder / "more").mkdir()
    shutil.copy(folder / "a.zse", folder / "more" / "a.zse")
    with pytest.raises(UsageError, match="two models named 'a'"):
        names(folder)
