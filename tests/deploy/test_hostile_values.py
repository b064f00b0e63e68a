"""Environment values with quotes, newlines and ``${``: every file still says exactly them."""

import ast
import json
import re
import shlex

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zse.deploy.registry import make_plan

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
NASTY = st.sampled_from(
    ['"', "'", "\n", "a: b\n- c", "${HOME}", "$$", "{{ x }}", "@{name}", "\\", "`id`", "$(id)", "#"]
)
VALUES = st.dictionaries(
    st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True).filter(
        lambda name: name not in ("HF_TOKEN", "PORT")
    ),
    NASTY | TEXT,
    min_size=1,
    max_size=3,
)
QUICK = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def from_modal(files):
    tree = ast.parse(files["app.py"])
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ENVIRONMENT":
            return ast.literal_eval(node.value)
        if isinstance(node, ast.keyword) and node.arg == "env" and isinstance(node.value, ast.Dict):
            return ast.literal_eval(node.value)
    raise AssertionError("no environment")


def from_kubernetes(files):
    spec = yaml.safe_load(files["base/deployment.yaml"])["spec"]["template"]["spec"]
    return {e["name"]: e["value"] for e in spec["containers"][0]["env"] if "value" in e}


def from_compose(files):
    environment = yaml.safe_load(files["compose.yaml"])["services"]["server"]["environment"]
    for value in environment.values():
        # Compose reads $$ as a dollar sign and ${NAME...} as a reference.
        assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)(?!\{HUB:\?)", value), value
    return {name: value.replace("$$", "$") for name, value in environment.items()}


def from_vast(files):
    words = shlex.split(json.loads(files["template.json"])["env"])
    return dict(word.split("=", 1) for word in words if "=" in word)


READERS = {
    ("modal", "server"): from_modal,
    ("modal", "class"): from_modal,
    ("runpod", "queue"): lambda files: json.loads(files["endpoint.json"])["env"],
    ("runpod", "load-balancer"): lambda files: json.loads(files["template.json"])["env"],
    ("kubernetes", "always-on"): from_kubernetes,
    ("compose", ""): from_compose,
    ("render", ""): lambda files: {
        e["key"]: e["value"]
        for e in yaml.safe_load(files["render.yaml"])["services"][0]["envVars"]
        if "value" in e
    },
    ("vast", ""): from_vast,
}


@pytest.mark.parametrize("target_form", READERS, ids="-".join)
@QUICK
@given(values=VALUES)
def test_the_environment_reads_back_as_it_was_given(target_form, values, make_order):
    target, form = target_form
    plan = make_plan(target, make_order(target, form=form, env=values))
    found = READERS[target_form](plan.files)
    assert {name: found[name] for name in values} == values


@QUICK
@given(values=VALUES)
def test_a_command_carries_a_value_as_one_word(values, make_order):
    plan = make_plan("railway", make_order("railway", env=values))
    words = plan.commands[1]
    assert all(f"{name}={value}" in words for name, value in values.items())
    assert shlex.split(shlex.join(words)) == list(words)
