"""The Modal apps in the real client, without a network: what they register, and their hooks."""

import httpx
import pytest

modal = pytest.importorskip("modal")


@pytest.fixture(scope="module")
def server_app(load_entry_point):
    return load_entry_point("modal/server.py")


@pytest.fixture(scope="module")
def class_app(load_entry_point):
    return load_entry_point("modal/cls.py")


def functions_of(app):
    """Return what an app would deploy, by tag. The client shows it nowhere else without a login."""
    inner = next(value for name, value in vars(app).items() if name.startswith("_sync_original"))
    return inner._local_state.functions


def hooks_of(server):
    """Return an object with the plain methods behind the client's decorators."""
    names = ("start", "wake", "_wait", "stop")
    plain = {}
    for name in names:
        value = vars(server).get(name)
        if value is not None:
            raw = next((v for k, v in vars(value).items() if k.startswith("_sync_orig")), value)
            plain[name] = getattr(raw, "raw_f", raw)
    return type("Hooks", (), plain)()


def test_the_server_registers_one_function_with_its_gpu_and_volume(server_app):
    functions = functions_of(server_app.app)
    assert list(functions) == ["Server"]
    spec = functions["Server"]._spec
    assert spec.gpus == "L4"
    assert [str(path) for path in spec.volumes] == ["/models"]
    assert server_app.app.name == "zse-qwen"
    assert isinstance(server_app.Server, modal.server.Server)


def test_the_class_registers_a_web_endpoint_and_its_bucket(class_app):
    functions = functions_of(class_app.app)
    assert list(functions) == ["Server.*"]
    assert functions["Server.*"]._spec.gpus == "L4"
    mounts = functions["Server.*"]._spec.volumes | dict(
        getattr(functions["Server.*"]._spec, "cloud_bucket_mounts", None) or {}
    )
    assert [type(mount).__name__ for mount in mounts.values()] == ["_CloudBucketMount"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["server", "class"])
def test_after_the_hooks_the_port_is_ready_and_a_stop_ends_with_code_zero(
    name, request, free_port, serve_tiny, monkeypatch
):
    module = request.getfixturevalue(f"{name}_app")
    port = free_port()
    monkeypatch.setattr(module, "PORT", port)
    monkeypatch.setattr(module, "COMMAND", serve_tiny(port))
    hooks = hooks_of(user_class_of(module.Server))
    hooks.start()
    try:
        url = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{url}/health/ready", timeout=60).status_code == 200
        # The proxy's headers and an OpenAI key side by side.
        headers = {"Modal-Key": "wk-1", "Modal-Secret": "ws-1", "Authorization": "Bearer sk-1"}
        body = {"messages": [{"role": "user", "content": "What is the opposite of hot?"}]}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)
        assert answer.json()["choices"][0]["message"]["content"]
        if name == "class":
            hooks.wake()  # nothing was lost, nothing is started
            first = hooks.process
            first.kill()
            first.wait()
            hooks.wake()
            assert hooks.process is not first
            assert httpx.get(f"{url}/health/ready", timeout=60).status_code == 200
    finally:
        hooks.stop()
    assert hooks.process.returncode == 0


def test_a_server_that_ends_while_loading_fails_the_start(server_app, monkeypatch, free_port):
    monkeypatch.setattr(server_app, "PORT", free_port())
    monkeypatch.setattr(server_app, "COMMAND", ["false"])
    with pytest.raises(RuntimeError, match="code 1"):
        hooks_of(user_class_of(server_app.Server)).start()


def user_class_of(server):
    """Return the class as it was written."""
    inner = next(v for k, v in vars(server).items() if k.startswith("_sync_original"))
    return inner._get_user_cls() if hasattr(inner, "_get_user_cls") else inner._user_cls
