"""What the machine and the models say of themselves."""


def test_the_system_its_memory_and_its_models_are_told(call):
    call.chat("say:abc")
    found = call("GET", "/api/stats").json()
    assert found["cpu"]["cores"] >= 1
    assert 0 < found["memory"]["process_bytes"] < found["memory"]["total_bytes"]
    assert found["in_flight"] == 0
    assert [one["name"] for one in found["models"]] == ["scripted"]
    assert found["gpu"]["count"] == len(found["gpu"]["gpus"])


def test_a_machine_without_a_gpu_says_so(call, monkeypatch):
    monkeypatch.setattr("zse.serve.admin.stats.cuda_device_present", lambda: False)
    assert call("GET", "/api/stats/gpu").json() == {"available": False, "count": 0, "gpus": []}


def test_each_model_tells_its_memory_and_its_work(call, state, scripted):
    state.models.put(scripted.scripted_model("other"), aliases=["gpt-4"])
    models = call("GET", "/api/stats/models").json()["models"]
    assert [(one["name"], one["is_default"], one["aliases"]) for one in models] == [
        ("scripted", True, ["default"]),
        ("other", False, ["gpt-4"]),
    ]
    assert models[0]["memory_bytes"] == {"weights": 4096, "kv_cache": 1024}
    assert models[0]["running"] == 0
