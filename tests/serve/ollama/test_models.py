"""Models as Ollama's clients ask for them."""


def test_what_is_there_is_listed(call):
    for path in ("/api/tags", "/api/ps"):
        (entry,) = call("GET", path).json()["models"]
        assert entry["name"] == entry["model"] == "scripted"
        assert entry["modified_at"] == "1970-01-01T00:00:01Z"
        assert len(entry["digest"]) == 64
        assert {"format", "family", "families", "parameter_size"} <= set(entry["details"])


def test_a_model_says_what_it_can_do(real):
    shown = real("POST", "/api/show", json={"model": "default"}).json()
    assert "completion" in shown["capabilities"]
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] > 0
    assert shown["model_info"]["general.parameter_count"] > 0
    assert real("POST", "/api/show", json={"name": "default:latest"}).json() == shown
    assert real("POST", "/api/show", json={"model": "none"}).status_code == 404


def test_the_version_is_one_that_clients_talk_to(call):
    assert call("GET", "/api/version").json()["version"].count(".") == 2
