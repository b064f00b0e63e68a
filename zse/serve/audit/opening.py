"""Where the audit log lies."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import BadSettingError
from zse.serve.audit.files import AuditFiles

if TYPE_CHECKING:
    from zse.settings import Settings

LOG = logging.getLogger("zse.serve")


def audit_files(settings: Settings) -> AuditFiles:
    """Return the files that servers of these settings write."""
    named = settings.serve.audit.audit_dir
    folder = Path(named) if named else settings.home / "audit"
    return AuditFiles(folder.expanduser())


def files_for_server(settings: Settings) -> AuditFiles | None:
    """Return where a server writes; None where it is to remember the last requests only.

    Raises:
        BadSettingError: The folder that somebody named cannot be written.
    """
    options = settings.serve.audit
    if not options.audit:
        return None
    files = audit_files(settings)
    try:
        files.append([])  # which makes what is needed
    except OSError as error:
        if options.audit_dir:
            raise BadSettingError(
                f"audit_dir {options.audit_dir!r} cannot be written: {error.strerror}",
                hint="Name another folder, or start with --no-audit.",
            ) from error
        # A container whose files cannot be changed, most likely: its log has a line of each too.
        LOG.info("the audit log is in memory only", extra={"folder": str(files.folder)})
        return None
    return files
