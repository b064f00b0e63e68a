"""The Hugging Face hub: a model id becomes a local snapshot folder, or one clear error.

Only the files that a conversion reads are asked for: never pickle, never code. The hub's own cache
is used, so an interrupted download goes on where it stopped and other tools share it.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zse.errors import CheckpointError, HubError, needing
from zse.models.pooling import MODULES_FILE, POOLING_SECTION
from zse.quantize.near_miss import near_listing
from zse.quantize.text_files import TOKENIZER_FILES
from zse.quantize.weight_files import INDEX_NAME, SINGLE_NAME, refuse_pickle
from zse.store.hub_file import refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ALLOWED_FILES = (
    "config.json",
    "generation_config.json",
    POOLING_SECTION,
    MODULES_FILE,
    *TOKENIZER_FILES,
    SINGLE_NAME,
    INDEX_NAME,
    "model-*.safetensors",
)


def fetch_snapshot(
    repository: str,
    revision: str | None = None,
    *,
    endpoint: str | None = None,
    token: str | None = None,
    cache_dir: Path | None = None,
    check: Callable[[str, Sequence[str]], None] | None = None,
) -> Path:
    """Download what a conversion needs of one revision; files in the cache are not fetched.

    Args:
        revision: Branch, tag or commit; None means the default branch.
        endpoint: Base URL; None means the hub's own, or what HF_ENDPOINT says.
        token: For gated repositories; None means the one that the hub's tools saved.
        cache_dir: None means the hub's usual cache.
        check: Given a repository's name and its files' names before anything is downloaded.

    Returns:
        The folder, whose name is the commit, 40 hexadecimal digits.

    Raises:
        HubError: The repository or revision does not exist, is gated, or the hub is out of reach
            and the cache does not hold the revision.
        RefusedError: The repository holds only pickle weights.
        MissingDependencyError: huggingface_hub is not installed.
    """
    with needing("convert", "downloading from the hub"):
        library = import_module("huggingface_hub")
    api = library.HfApi(endpoint=endpoint, token=token)  # which loads its errors
    try:
        with _translated(library, repository, revision):
            info = api.model_info(repository, revision=revision)
        names = sorted(sibling.rfilename for sibling in info.siblings or [])
    except HubOfflineError:
        names = None
    if names is not None:
        check_names(repository, names)
        if check is not None:
            check(repository, names)
    with _translated(library, repository, revision):
        return Path(
            library.snapshot_download(
                repository,
                revision=revision,
                allow_patterns=list(ALLOWED_FILES),
                endpoint=endpoint,
                token=token,
                cache_dir=cache_dir,
                local_files_only=names is None,
            )
        )


class HubOfflineError(HubError):
    """The hub cannot be reached."""

    default_hint = "Check the network, or name a local folder that holds the checkpoint."


def check_names(repository: str, names: list[str]) -> None:
    """Refuse a repository or a remote folder, by its files' names, without whole safetensors.

    Raises:
        RefusedError: The weights are stored as pickle.
        CheckpointError: There are none; what there is instead is named.
    """
    if SINGLE_NAME in names or INDEX_NAME in names:
        return
    refuse_pickle(repository, names)
    raise near_listing(repository, names) or CheckpointError(
        f"{repository} holds neither {SINGLE_NAME} nor {INDEX_NAME}",
        hint="Choose a repository with safetensors weights of the whole model.",
    )


@contextmanager
def _translated(library: Any, repository: str, revision: str | None) -> Iterator[None]:
    errors = library.errors
    try:
        yield
    except errors.LocalEntryNotFoundError as error:
        raise HubOfflineError(
            f"the hub cannot be reached and its cache does not hold {repository}"
        ) from error
    except errors.GatedRepoError as error:
        raise refusal_of(HubError, "GatedRepo", repository, revision) from error
    except errors.RevisionNotFoundError as error:
        raise refusal_of(HubError, "RevisionNotFound", repository, revision) from error
    except errors.RepositoryNotFoundError as error:
        raise refusal_of(HubError, "RepoNotFound", repository, revision) from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "no")
        raise HubError(
            f"the hub answered {repository} with status {status}",
            hint="Try again later; what was downloaded is kept.",
        ) from error
    except _network_errors() as error:
        raise HubOfflineError(f"the hub cannot be reached: {error}") from error


def _network_errors() -> tuple[type[Exception], ...]:
    """Return what the hub library's HTTP client raises; which client depends on its version."""
    loaded = (sys.modules.get(name) for name in ("httpx", "httpx2"))
    # Oldest versions use requests, whose errors are OSErrors.
    return (OSError, *(module.HTTPError for module in loaded if module is not None))
