"""The image's health check: exit code 0 when the server says that it is ready."""

import http.client
import os
import sys


def is_ready() -> bool:
    """Ask the server of this container."""
    port = int(os.environ.get("PORT") or os.environ.get("ZSE_PORT") or 8000)  # noqa: TID251
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(0 if is_ready() else 1)
