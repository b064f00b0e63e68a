"""The call of RunPod's API, with a transport of ours in place of the network."""

import json

import httpx
import pytest

from zse.deploy.errors import DeployError
from zse.deploy.registry import make_plan
from zse.deploy.runpod_api import send

KEY = "rpa_canary"


def answering(status: int, content: bytes, seen: list | None = None) -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        return httpx.Response(status, content=content)

    return httpx.MockTransport(answer)


@pytest.fixture
def request_of_plan(make_order):
    return make_plan("runpod", make_order("runpod")).request


def test_the_endpoint_is_created_with_the_plans_body(request_of_plan):
    seen = []
    answer = send(request_of_plan, KEY, transport=answering(201, b'{"id": "abc"}', seen))
    assert answer == {"id": "abc"}
    (request,) = seen
    assert str(request.url) == "https://api.runpod.io/v2/serverless"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    body = json.loads(request.content)
    assert body["type"] == "LOAD_BALANCER"
    assert body["scaling"] == {"type": "REQUEST_COUNT", "requestCount": 16}
    assert body["env"]["HF_TOKEN"] == "{{ RUNPOD_SECRET_hub }}"
    assert (body["env"]["PORT"], body["env"]["PORT_HEALTH"]) == ("8000", "8000")


def test_without_a_key_nothing_is_sent(request_of_plan):
    with pytest.raises(DeployError, match="RUNPOD_API_KEY"):
        send(request_of_plan, "")


@pytest.mark.parametrize(("status", "hinted"), [(401, True), (422, False), (500, False)])
def test_a_refusal_shows_the_answer_and_never_the_key(request_of_plan, status, hinted):
    with pytest.raises(DeployError, match=f"{status}: bad pool") as caught:
        send(request_of_plan, KEY, transport=answering(status, b"bad pool"))
    assert bool(caught.value.hint) == hinted
    assert KEY not in str(caught.value)


def test_an_answer_that_is_no_json_is_an_error(request_of_plan):
    with pytest.raises(DeployError, match="not JSON"):
        send(request_of_plan, KEY, transport=answering(200, b"<html>"))


def test_a_broken_connection_warns_that_the_endpoint_may_exist(request_of_plan):
    def broken(request):
        raise httpx.ReadTimeout("slow")

    with pytest.raises(DeployError) as caught:
        send(request_of_plan, KEY, transport=httpx.MockTransport(broken))
    assert "may exist" in caught.value.hint
