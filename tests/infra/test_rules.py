"""The project's own rules for its modules."""

import re

import modules
import pytest
from readme_tables import filled

each_module = pytest.mark.parametrize("module", modules.MODULES, ids=lambda path: path.name)
each_example = pytest.mark.parametrize(
    "example",
    [*modules.EXAMPLES, *modules.REPOSITORY_EXAMPLES],
    ids=lambda path: f"{path.parent.name}-{path.name}",
)
FILES = {"main.tf", "variables.tf", "outputs.tf", "versions.tf", "README.md"}
COMMON = {"name", "image", "model_url", "min_instances", "max_instances", "env", "startup_seconds"}
FREE_TEXTS = {  # ids of things that only the cloud can check
    "project", "models_bucket", "network", "subnetwork", "resource_group_name", "registry_server",
    "log_analytics_workspace_id", "registry_auth_id", "kms_key_arn", "success_topic_arn", "error_topic_arn",
}  # fmt: skip


def readme(folder):
    return (folder / "README.md").read_text()


@each_module
def test_a_module_has_its_files_and_its_tests(module):
    assert {path.name for path in module.iterdir()} >= FILES
    assert list((module / "tests").glob("*.tftest.hcl"))


@each_module
def test_every_variable_has_a_type_a_description_and_where_it_can_a_check(module):
    for name, body in modules.named(module, "variable").items():
        assert "type" in body, name
        assert len(body["description"]) > 10, name
        is_checked = "validation" in body or name in FREE_TEXTS
        is_free = "bool" in str(body["type"]) or "list(" in str(body["type"])
        assert is_checked or is_free or name in ("labels", "tags"), name


@each_module
def test_every_output_is_described_and_the_url_is_one(module):
    outputs = modules.named(module, "output")
    assert "url" in outputs
    assert all(len(body["description"]) > 10 for body in outputs.values())


@each_module
def test_modules_share_their_names_and_sleep_by_default(module):
    variables = modules.named(module, "variable")
    assert variables.keys() >= COMMON
    assert variables["min_instances"]["default"] == 0
    if "public" in variables:
        assert variables["public"]["default"] is False
    assert variables.keys() & {"gpu_type", "gpu_types"}


@each_module
def test_the_readme_lists_every_variable_and_output_and_the_cost(module):
    text = readme(module)
    for name in [*modules.named(module, "variable"), *modules.named(module, "output")]:
        assert f"`{name}`" in text, name
    assert "## Cost" in text
    assert "## Secrets" in text


@pytest.mark.parametrize(
    "folder", modules.FOLDERS, ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_providers_are_pinned_and_a_module_configures_none(folder):
    (terraform,) = modules.read(folder)["terraform"]
    for required in terraform.get("required_providers", []):
        for name, provider in modules.own(required):
            assert provider["version"].strip('"').startswith("~> "), name
            assert "/" in provider["source"], name
    assert terraform["required_version"].strip('"').startswith(">= 1.")
    if folder in modules.MODULES:
        assert not modules.named(folder, "provider")


@each_example
def test_an_example_gives_what_its_module_needs_and_nothing_unknown(example):
    calls = modules.named(example, "module")
    assert calls
    for call in calls.values():
        source = (example / call["source"].strip('"')).resolve()
        assert source in modules.MODULES
        variables = modules.named(source, "variable")
        given = {name for name, _ in modules.own(call)} - {"source", "providers", "depends_on"}
        needed = {name for name, body in variables.items() if "default" not in body}
        assert needed <= given <= variables.keys()


def test_every_module_has_an_example_of_its_name():
    assert [path.name for path in modules.EXAMPLES] == [path.name for path in modules.MODULES]


@pytest.mark.parametrize(
    "folder", modules.FOLDERS, ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_every_variable_is_used_and_every_name_is_declared(folder):
    text = modules.text_of(folder)
    declared = set(modules.named(folder, "variable"))
    without = re.sub(r'(?ms)^variable ".*?^}', "", text)
    assert set(re.findall(r"\bvar\.(\w+)", without)) == declared
    names = {
        name for block in modules.read(folder).get("locals", []) for name, _ in modules.own(block)
    }
    assert set(re.findall(r"\blocal\.(\w+)", text)) == names


@each_module
def test_no_secret_has_a_variable_of_its_own(module):
    """A value given to a module is in the state; a reference is not."""
    for name, body in modules.named(module, "variable").items():
        assert "sensitive" not in body, name
        assert not re.search(r"(key|token|password)$", name), name
    if "secrets" in modules.named(module, "variable"):
        assert (
            "never enters the state" in modules.named(module, "variable")["secrets"]["description"]
        )


@each_module
def test_servers_are_asked_where_they_answer(module):
    """503, then 200, or RunPod's 204; SageMaker asks /ping by itself."""
    text = modules.text_of(module)
    if module.name == "aws-sagemaker-async":
        assert '"8080"' in text
    elif module.name == "runpod-endpoint":
        assert '"/ping"' in text
    else:
        assert '"/health/ready"' in text
    assert "ZSE_DRAIN_SECONDS" in text


@each_module
def test_the_tables_of_the_readme_are_fresh(module):
    assert readme(module) == filled(module), "run: python tests/infra/readme_tables.py"
