"""One document describes every route that is served, and holds together."""

import re

import pytest
from jsonschema import Draft202012Validator

from zse.serve.access.rules import OLLAMA_PATHS
from zse.serve.app import HOT_ROUTES


@pytest.fixture
def document(call):
    return call("GET", "/openapi.json").json()


def values_of(node, key):
    """Yield every value of a key, however deep."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key:
                yield value
            yield from values_of(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from values_of(value, key)


def test_every_hot_route_is_described(document):
    for route in HOT_ROUTES:
        assert route.method.lower() in document["paths"][route.described_path]


def test_the_mounted_routes_are_in_the_same_document(document):
    paths = {"/api/stats", "/api/batching/enable", "/api/analytics/timeseries", "/version"}
    assert paths <= set(document["paths"])


def test_every_reference_leads_somewhere(document):
    schemas = document["components"]["schemas"]
    refs = [ref for ref in values_of(document, "$ref") if isinstance(ref, str)]
    assert refs
    assert not [ref for ref in refs if ref.removeprefix("#/components/schemas/") not in schemas]


def test_every_schema_is_a_valid_json_schema(document):
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_operation_has_a_summary_an_answer_and_the_error_body_of_its_protocol(document):
    for path, methods in document["paths"].items():
        name = "AnthropicError" if path.startswith("/v1/messages") else "ErrorBody"
        name = "OllamaError" if path in OLLAMA_PATHS else name
        for operation in methods.values():
            assert operation["summary"].endswith(".")
            # MCP asks for an address that says that it has no stream of its own.
            answers = operation["responses"]
            assert "405" in answers or any(code.startswith("2") for code in answers)
            error = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert error == {"$ref": f"#/components/schemas/{name}"}
            assert "422" not in operation["responses"]


def test_every_parameter_of_a_path_is_described(document):
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"]
            assert sorted(named) == sorted(re.findall(r"\{(\w+)\}", path))


def test_identifiers_of_operations_are_unique(document):
    found = list(values_of(document["paths"], "operationId"))
    assert len(found) == len(set(found))


def test_bodies_of_requests_are_described_by_their_structs(document):
    assert "messages" in document["components"]["schemas"]["ChatRequest"]["properties"]
    fields = document["components"]["schemas"]["ModelStats"]["properties"]
    assert "Share of the KV blocks" in fields["kv_usage"]["description"]


def test_the_document_is_the_same_when_it_is_asked_for_again(call, document):
    assert call("GET", "/openapi.json").json() == document
    assert call("GET", "/docs").status_code == 200
    assert call("GET", "/version").json()["model"] == "scripted"


def test_a_conversation_is_taken_along_in_each_of_the_forms_that_are_described(document):
    exported = document["paths"]["/api/chat/conversations/{conversation}/export"]["get"]
    assert set(exported["responses"]["200"]["content"]) == {"application/json", "text/markdown"}
