"""Entries, and folders that hold them."""

import pytest

from zse.serve.audit.entry import AuditEntry
from zse.serve.audit.files import AuditFiles


@pytest.fixture
def make_entry():
    def make(number=0, **facts):
        fields = {
            "request_id": f"req_{number}",
            "timestamp": f"2026-02-24T10:{number // 60:02d}:{number % 60:02d}.000Z",
            "method": "POST",
            "path": "/v1/chat/completions",
            "status_code": 200,
            "latency_ms": 10.0 * (number + 1),
            "api_key_name": "my-app",
            "client_ip": "127.0.0.1",
            "user_agent": "tests",
            "model_id": "tiny",
            "total_tokens": 7,
        }
        return AuditEntry(**{**fields, **facts})

    return make


@pytest.fixture
def make_files(tmp_path):
    def make(**limits):
        return AuditFiles(tmp_path / "audit", **limits)

    return make


@pytest.fixture
def files(make_files):
    return make_files()
