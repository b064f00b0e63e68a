"""The audit log of a server, and what writes to it around every route."""

from __future__ import annotations

from zse.serve.audit.auditing import Auditing as AuditMiddleware
from zse.serve.audit.log import AuditLog as AuditLogger

__all__ = ["AuditLogger", "AuditMiddleware"]
