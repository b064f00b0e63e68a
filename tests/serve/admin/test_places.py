"""A client says names; only what the command line named can be meant by them."""

import pytest

from zse.errors import UsageError
from zse.serve.admin.places import MAX_LISTED, ModelNotAllowedError, Places


@pytest.fixture
def folder(tmp_path):
    """A folder of models, with a secret one beside it that links lead to."""
    models = tmp_path / "models"
    (models / "sub" / "deep").mkdir(parents=True)
    for path in ("a.zse", "sub/b.zse", "sub/deep/c.zse", "notes.txt"):
        (models / path).write_bytes(b"x" * 7)
    checkpoint = models / "qwen"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    (tmp_path / "secret.zse").write_bytes(b"secret")
    (models / "link.zse").symlink_to(tmp_path / "secret.zse")
    (models / "outside").symlink_to(tmp_path)
    (models / "loop.zse").symlink_to(models / "loop.zse")
    (models / "inner.zse").symlink_to(models / "a.zse")
    return models


@pytest.fixture
def places(folder):
    return Places("tiny", [str(folder)])


def test_a_folder_holds_its_files_and_checkpoints_and_those_one_folder_down(places):
    names = [model.name for model in places.listed()]
    assert names == ["tiny", "a.zse", "inner.zse", "qwen", "sub/b.zse"]
    assert next(model for model in places.listed() if model.name == "a.zse").size_bytes == 7


def test_the_suffix_may_be_left_out(places, folder):
    assert places.find("sub/b").reference == str(folder / "sub" / "b.zse")


@pytest.mark.parametrize(
    "name",
    [
        "../secret.zse",
        "sub/../../secret.zse",
        "sub/../a.zse",
        "./a.zse",
        "/etc/passwd",
        "~/a.zse",
        "link.zse",
        "outside/secret.zse",
        "outside",
        "loop.zse",
        "%2e%2e/secret.zse",
        "..%2fsecret.zse",
        "..\\secret.zse",
        "a.zse\0",
        "a.zse\n",
        "a.zse ",
        "A.ZSE",
        "",
        ".",
        "..",
        "notes.txt",
        "sub",
        "*",
        "file:///etc/passwd",
        "s3://bucket/a.zse",
        "hf://owner/name",
        "owner/name",
        "https://169.254.169.254/latest/meta-data",
        "http://localhost:1/a.zse",
        "a" * 600,
        "\u202ea.zse",
    ],
)
def test_nothing_else_is_reached_and_where_it_looked_is_not_told(places, folder, name):
    with pytest.raises(ModelNotAllowedError) as caught:
        places.find(name)
    assert str(folder) not in str(caught.value)
    assert len(caught.value.message) < 200


def test_places_as_they_are_now_read_each_folder_once(places, folder):
    now = places.as_now()
    (folder / "sub" / "b.zse").unlink()
    assert now.find("sub/b").name == "sub/b.zse"
    assert now.find("qwen").reference == str(folder / "qwen")
    assert [model.name for model in now.listed()][-1] == "sub/b.zse"
    with pytest.raises(ModelNotAllowedError):
        now.find("outside/secret.zse")
    with pytest.raises(ModelNotAllowedError):
        places.find("sub/b")


def test_the_path_of_the_folder_itself_is_no_name(places, folder):
    with pytest.raises(ModelNotAllowedError):
        places.find(str(folder / "a.zse"))


def test_the_model_of_the_start_can_be_loaded_again(tmp_path):
    path = tmp_path / "qwen.zse"
    path.write_bytes(b"x")
    places = Places(str(path))
    assert places.find("qwen").reference == places.find(str(path)).reference == str(path)


def test_a_bucket_admits_model_files_below_its_prefix_alone():
    places = Places("tiny", ["s3://models/public/"])
    assert places.find("s3://models/public/a.zse").reference == "s3://models/public/a.zse"
    for name in (
        "s3://models/private/a.zse",
        "s3://models/public",
        "s3://models/public/",
        "s3://models/public/notes.txt",
        "s3://models/public/../private/a.zse",
        "s3://other/public/a.zse",
        "s3://models.evil.example/public/a.zse",
        "s3://evil@models/public/a.zse",
        "S3://models/public2/a.zse",
        "public/a.zse",
        "https://models/public/a.zse",
    ):
        with pytest.raises(ModelNotAllowedError):
            places.find(name)


def test_an_owner_admits_its_repositories_alone():
    places = Places("tiny", ["hf://Qwen/"])
    assert places.find("Qwen/Qwen3-4B").reference == "hf://Qwen/Qwen3-4B"
    assert places.find("hf://Qwen/Qwen3-4B@main").reference == "hf://Qwen/Qwen3-4B@main"
    for name in ("Qwen2/x", "qwen/Qwen3-4B", "hf://evil/Qwen", "Qwen/../evil/x", "Qwen"):
        with pytest.raises(ModelNotAllowedError):
            places.find(name)


def test_a_single_repository_admits_no_other():
    places = Places("tiny", ["Qwen/Qwen3-4B"])
    assert places.find("Qwen/Qwen3-4B").reference == "Qwen/Qwen3-4B"
    with pytest.raises(ModelNotAllowedError):
        places.find("Qwen/Qwen3-8B")


def test_a_folder_of_many_files_is_listed_as_far_as_the_limit(tmp_path):
    for index in range(MAX_LISTED + 5):
        (tmp_path / f"{index:05}.zse").touch()
    assert len(Places("tiny", [str(tmp_path)]).listed()) == MAX_LISTED + 1


@pytest.mark.parametrize("text", ["/no/such/folder", "ftp://host/x", "s3://Bad_Bucket/x/"])
def test_a_place_that_is_none_is_refused_at_the_start(text):
    with pytest.raises(UsageError):
        Places("tiny", [text])
