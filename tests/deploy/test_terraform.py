"""Root modules: formatted, complete for the module they call, and free of interpolation."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from zse.deploy.order import parse_secrets
from zse.deploy.quoting import quote_hcl
from zse.deploy.registry import TARGETS, make_plan
from zse.deploy.targets.terraform import align_attributes
from zse.errors import UsageError

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "infra" / "terraform" / "modules"
FORMS = TARGETS["terraform"].forms
ECR = "123456789012.dkr.ecr.us-east-1.amazonaws.com/qwen:1"
# What a form cannot do without, and one of each setting that it has.
CHANGES = {
    "gcp-cloud-run-gpu": {
        "region": "us-central1",
        "extra": {"project": "p", "invokers": "user:a@b.c,user:d@e.f", "zonal_redundancy": "true"},
    },
    "azure-container-apps-gpu": {
        "region": "westus3",
        "extra": {"subscription_id": "s", "resource_group_name": "g"},
        "secrets": parse_secrets(("HF_TOKEN=https://v.vault.azure.net/secrets/hub",)),
    },
    "aws-sagemaker-async": {
        "image": ECR,
        "region": "us-east-1",
        "extra": {"output_bucket": "answers", "model_prefix": "s3://models/qwen/"},
        "secrets": (),
    },
    "aws-ecs-gpu": {
        "image": ECR,
        "region": "us-east-1",
        "extra": {
            "vpc_id": "vpc-1",
            "subnet_ids": "subnet-1,subnet-2",
            "allowed_cidrs": "10.0.0.0/8",
        },
        "secrets": parse_secrets(
            ("HF_TOKEN=arn:aws:secretsmanager:us-east-1:123456789012:secret:hub-AbCdEf",)
        ),
    },
    "runpod-endpoint": {"region": "EU-RO-1", "registry_secret": "cred", "extra": {}},
}


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


@pytest.fixture
def main_tf(form, make_order):
    order = make_order("terraform", form=form, **CHANGES[form])
    return make_plan("terraform", order).files["main.tf"]


def arguments_of(text: str) -> dict[str, str]:
    """Return the arguments of the module block, as they are written."""
    block = text[text.index('module "endpoint" {') : text.index('output "url"')]
    return dict(re.findall(r"^  ([a-z_]+) += (.*)$", block, re.M))


def variables_of(form: str) -> dict[str, bool]:
    """Return the module's variables, and whether each must be given."""
    text = (MODULES / form / "variables.tf").read_text()
    blocks = re.split(r'(?m)^variable "', text)[1:]
    return {
        block.partition('"')[0]: not re.search(r"(?m)^  default\s*=", block) for block in blocks
    }


def test_every_argument_is_a_variable_of_the_module_and_none_is_missing(form, main_tf):
    given = arguments_of(main_tf).keys() - {"source"}
    variables = variables_of(form)
    assert given <= variables.keys()
    assert {name for name, is_needed in variables.items() if is_needed} <= given


def test_every_template_names_only_variables_of_its_module(form):
    template = (
        Path(__file__).parents[2] / "zse" / "deploy" / "templates" / "terraform" / f"{form}.tf.tmpl"
    ).read_text()
    assert arguments_of(template).keys() - {"source"} <= variables_of(form).keys()


def test_every_module_has_a_form():
    assert {path.name for path in MODULES.iterdir() if path.is_dir()} == set(FORMS)


def test_outputs_are_those_of_the_module(form, main_tf):
    outputs = (MODULES / form / "outputs.tf").read_text()
    for name in re.findall(r"module\.endpoint\.(\w+)", main_tf):
        assert f'output "{name}"' in outputs


def test_what_is_written_holds_its_module_and_no_path_of_this_machine(form, make_order):
    plan = make_plan("terraform", make_order("terraform", form=form, **CHANGES[form]))
    assert f'source = "./modules/{form}"' in plan.files["main.tf"]
    own = {path.name for path in (MODULES / form).iterdir() if path.is_file()}
    assert {Path(name).name for name in plan.files if name.startswith("modules/")} == own
    for name, text in plan.files.items():
        assert str(MODULES.parents[2]) not in text, name


def test_an_installed_zse_brings_the_modules(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    without_kernels = {**os.environ, "HATCH_BUILD_NO_HOOKS": "true"}
    subprocess.run(
        [*build, "--directory", str(tmp_path)],
        check=True,
        capture_output=True,
        cwd=ROOT,
        env=without_kernels,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    order = ["terraform", "--image", "registry.example.com/qwen:1", "--gpu", "nvidia-l4"]
    settings = ["--region", "us-central1", "--set", "project=p", "--output", "made"]
    done = subprocess.run(
        [sys.executable, "-m", "zse", "deploy", *order, *settings],
        env={"PYTHONPATH": str(tmp_path / "installed"), "HOME": str(tmp_path)},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made" / "modules" / "gcp-cloud-run-gpu" / "main.tf").is_file()


@pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")
def test_terraform_fmt_has_nothing_to_change(main_tf, tmp_path):
    (tmp_path / "main.tf").write_text(main_tf)
    command = ["terraform", "fmt", "-check", "-diff", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_source_may_be_an_address_with_a_version(make_order):
    order = make_order(
        "terraform",
        region="us-central1",
        extra={
            "project": "p",
            "source": "git::https://h/r.git//infra/terraform/modules",
            "ref": "v1",
        },
    )
    text = make_plan("terraform", order).files["main.tf"]
    source = "git::https://h/r.git//infra/terraform/modules/gcp-cloud-run-gpu?ref=v1"
    assert f'source = "{source}"' in text


def test_a_module_from_an_address_is_not_copied(make_order):
    extra = {"project": "p", "source": "git::https://h/r.git//modules"}
    plan = make_plan("terraform", make_order("terraform", extra=extra))
    assert list(plan.files) == ["main.tf", "zse-deploy.json"]


def test_values_are_never_interpolated(make_order):
    order = make_order(
        "terraform",
        env={"A": '${file("/etc/passwd")}', "B": '"\n}\nresource'},
        **CHANGES["gcp-cloud-run-gpu"],
    )
    text = make_plan("terraform", order).files["main.tf"]
    assert r'"\u0024{file(\"/etc/passwd\")}"' in text
    assert "resource" not in re.findall(r"(?m)^\w+", text)


@pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")
def test_terraform_reads_back_what_was_written(tmp_path):
    values = [
        "${x}",
        "$${x}",
        "$$${x}",
        "%{ if }",
        'a"b\\c',
        "line\nline\r\t",
        "\x7f\x01é😀",
        "\\u0041",
    ]
    done = subprocess.run(
        ["terraform", "console"],
        input=f"jsonencode({quote_hcl(values)} == jsondecode(base64decode({encoded(values)})))\n",
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == '"true"'


def encoded(values: list[str]) -> str:
    return quote_hcl(base64.b64encode(json.dumps(values).encode()).decode())


@pytest.mark.parametrize(
    "changes",
    [
        {"extra": {}},  # no project
        {"region": ""},
        {"name": "a" * 26},
        {"gpu": "none"},
        {"extra": {"project": "p", "zonal_redundancy": "perhaps"}},
        {"form": "aws-sagemaker-async", "extra": {"output_bucket": "b"}},  # with a secret
        {
            "form": "aws-sagemaker-async",
            "extra": {"output_bucket": "b"},
            "secrets": (),
            "volume": "v",
        },
        {"form": "runpod-endpoint", "extra": {}, "is_public": True},
    ],
)
def test_what_a_module_cannot_do_is_refused_before_terraform_runs(changes, make_order):
    with pytest.raises(UsageError):
        make_plan(
            "terraform",
            make_order("terraform", **{**CHANGES["gcp-cloud-run-gpu"], **changes}),
        )


def test_a_clouds_address_of_a_secret_is_for_terraform_only(make_order):
    (use,) = parse_secrets(("T=arn:aws:ssm:us-east-1:123456789012:parameter/llm/token",))
    assert (use.secret.split(":")[0], use.key) == ("arn", "T")
    with pytest.raises(UsageError, match="by their names"):
        make_plan("kubernetes", make_order("kubernetes", secrets=(use,)))


def test_equals_signs_line_up_in_runs_of_one_line_attributes():
    text = 'a = 1\nlonger = 2\n\nb = 3\nc = {\n  "k" = 1\n  "key" = 2\n}\nd = 4\n'
    assert align_attributes(text) == (
        'a      = 1\nlonger = 2\n\nb = 3\nc = {\n  "k"   = 1\n  "key" = 2\n}\nd = 4\n'
    )
