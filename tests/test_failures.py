"""What the system and heavy packages raise becomes a sentence and a hint; a defect is called one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from zse.errors import (
    DeviceError,
    DiskFullError,
    MissingDependencyError,
    NotFoundError,
    StoreError,
    UsageError,
)
from zse.failures import UnforeseenError, as_error, deliberate


def refused(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)


CACHE = Path("/cache")


def test_a_deliberate_error_stays_itself() -> None:
    error = UsageError("no", hint="yes")
    assert as_error(error, CACHE) is error


@pytest.mark.parametrize(
    ("package", "extra"), [("torch", "convert"), ("boto3.session", "s3"), ("triton", "kernels")]
)
def test_a_missing_heavy_package_names_its_extra(package: str, extra: str) -> None:
    error = as_error(ModuleNotFoundError(f"No module named {package!r}", name=package), CACHE)
    assert isinstance(error, MissingDependencyError)
    assert package.partition(".")[0] in error.message
    assert f"[{extra}]" in error.hint


def test_a_heavy_package_that_does_not_load_says_why() -> None:
    error = as_error(ImportError("libgomp.so.1: no such file", name="torch"), CACHE)
    assert isinstance(error, MissingDependencyError)
    assert error.message == "torch cannot be imported: libgomp.so.1: no such file"


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (MemoryError(), DeviceError),
        (refused(errno.ENOMEM), DeviceError),
        (refused(errno.EMFILE), StoreError),
        (refused(errno.ENOSPC), DiskFullError),
        (refused(errno.ENOSPC, "/data/m.zse"), DiskFullError),
        (refused(errno.EACCES, "/data/m.zse"), StoreError),
        (refused(errno.EROFS, "/data/m.zse"), StoreError),
        (refused(errno.ENOENT, "/data/m.zse"), NotFoundError),
    ],
)
def test_what_the_system_refuses_has_words_and_a_hint(failure: Exception, kind: type) -> None:
    error = as_error(failure, CACHE)
    assert type(error) is kind
    assert error.hint
    assert "Errno" not in error.message


def test_memory_that_torch_is_refused_is_said_in_gib() -> None:
    words = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 134217728000 bytes. Error code 12"
    error = as_error(RuntimeError(words), CACHE)
    assert isinstance(error, DeviceError)
    assert error.message == "the machine has no room for 125.0 GiB more memory"
    assert "--kv-gib" in error.hint


@pytest.mark.parametrize("where", ["", "models", "models/a.zse"])
def test_a_cache_folder_that_cannot_be_used_names_its_variable(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    error = as_error(refused(errno.EROFS, str(cache / where)), cache)
    assert isinstance(error, StoreError)
    assert error.message.startswith(f"the cache folder {cache} (ZSE_CACHE_DIR) cannot be used: ")
    assert "ZSE_CACHE_DIR" in error.hint


def test_a_folder_above_the_cache_that_can_be_used_is_not_the_caches_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = as_error(refused(errno.EISDIR, str(tmp_path)), tmp_path / "cache")
    assert error is not None
    assert "ZSE_CACHE_DIR" not in error.hint


def test_a_defect_has_no_words_of_its_own() -> None:
    assert as_error(TypeError("x"), CACHE) is None
    assert as_error(ImportError("no", name="somewhere"), CACHE) is None


def test_a_defect_is_said_with_its_type_its_first_line_and_its_place() -> None:
    with pytest.raises(AttributeError) as caught:
        as_error(ImportError(name=5), CACHE)  # type: ignore[arg-type]
    error = deliberate(caught.value, CACHE)
    assert isinstance(error, UnforeseenError)
    assert error.message.startswith("AttributeError: 'int' object has no attribute 'partition'")
    assert "(zse/failures.py, line " in error.message
    assert "ZSE_DEBUG=1" in error.hint
