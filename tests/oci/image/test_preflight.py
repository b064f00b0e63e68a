from __future__ import annotations

import os

import httpx
import pytest
from broken_rules import breaks
from oci_builders import FakeRegistry

from zse.errors import StoreError
from zse.oci.errors import ImageRule, RegistryAuthError, RegistryError
from zse.oci.image.options import BuildOptions
from zse.oci.image.preflight import check_model, check_options, check_places
from zse.oci.recipe import load_recipe
from zse.oci.registry.client import Registry
from zse.oci.registry.credentials import Credentials
from zse.oci.registry.reference import parse_reference


@pytest.fixture
def options(project):
    def options(**more):
        usual = {
            "name": "127.0.0.1:9/app:1",
            "cache_dir": project / "cache",
            "base": f"rootfs:{project / 'base.tar'}",
            "output": f"oci:{project / 'out'}",
        }
        return BuildOptions(**{**usual, **more})

    return options


def registry(fake, credentials=None):
    return Registry(
        parse_reference("127.0.0.1:5000/app:1"), credentials, transport=fake.transport()
    )


def test_places_that_are_fine_stay_as_they_are(project, options):
    before = sorted(project.iterdir())
    check_options(load_recipe(project / "recipe"), options())
    check_places(load_recipe(project / "recipe"), options())
    assert sorted(project.iterdir()) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_that_may_not_be_written_is_an_error(project, options):
    (project / "closed").mkdir(mode=0o500)
    with pytest.raises(StoreError, match="cannot write into"):
        check_options(load_recipe(project / "recipe"), options(output=f"oci:{project}/closed/a/b"))


def test_layout_that_is_there_may_be_added_to(project, options, build):
    build()
    check_options(load_recipe(project / "recipe"), options())


def test_registry_that_nobody_answers_for_is_an_error_at_once(project, options):
    with pytest.raises(RegistryError, match="could not be reached"):
        check_places(load_recipe(project / "recipe"), options(is_pushed=True))


def test_check_of_a_push_leaves_nothing_behind():
    fake = FakeRegistry()
    registry(fake).check_push()
    assert [method for method, *_ in fake.log] == ["POST", "DELETE"]
    assert fake.sessions == {}


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_check_of_a_push_signs_in_to_push(auth):
    fake = FakeRegistry(auth=auth)
    registry(fake, Credentials(user="me", password="secret")).check_push()
    assert all("pull%2Cpush" in url or "pull,push" in url for url in fake.tokens_asked)
    with pytest.raises(RegistryAuthError):
        registry(FakeRegistry(auth="basic")).check_push()


def test_registry_that_cannot_end_an_upload_is_fine():
    fake = FakeRegistry()
    transport = fake.transport()
    answer = transport.handler
    transport.handler = lambda request: (
        answer(request) if request.method == "POST" else httpx.Response(405)
    )
    Registry(parse_reference("127.0.0.1:5000/app:1"), transport=transport).check_push()


def test_model_over_the_budget_is_refused_before_it_is_packed(project, options):
    model = project / "model.zse"
    assert check_model(options(model=model, max_size_bytes=1 << 20)) == model
    with breaks(ImageRule.IMAGE_TOO_LARGE, match="the model alone"):
        check_model(options(model=model, max_size_bytes=100))
