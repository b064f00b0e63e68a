"""Runs functions/ray/ray_app.py on a cluster of this machine; prints what was seen as JSON.

python ray_child.py FOLDER    # with ray_app.py in it
"""

import json
import sys
import time

import httpx
import ray
from ray import serve

PORT = 18555
URL = f"http://127.0.0.1:{PORT}"
ASKED = {"prompt": "Hello", "max_tokens": 16, "temperature": 0, "ignore_eos": True}


def ask(**fields):
    begun = time.monotonic()
    found = httpx.post(f"{URL}/v1/completions", json=ASKED | fields, timeout=200)
    return found, round(time.monotonic() - begun, 3)


def num_replicas() -> int:
    states = serve.status().applications["default"].deployments["Replica"].replica_states
    return sum(states.values())


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    import ray_app

    ray.init(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False)
    serve.start(http_options={"port": PORT})
    serve.run(ray_app.app)
    seen = {"at_first": num_replicas()}
    found, seen["woken_seconds"] = ask()
    seen["text"] = found.json()["choices"][0]["text"]
    _, seen["awake_seconds"] = ask()
    seen["refused"] = ask(max_tokens=-1)[0].status_code
    lines = ask(stream=True)[0].text.splitlines()
    pieces = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    seen["streamed"] = "".join(each["choices"][0]["text"] for each in pieces)
    deadline = time.monotonic() + 90
    while num_replicas() and time.monotonic() < deadline:
        time.sleep(0.5)
    seen["at_last"] = num_replicas()
    seen["woken_again"] = ask()[0].json()["choices"][0]["text"]
    print(json.dumps(seen), flush=True)
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
