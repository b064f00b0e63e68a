"""One repository of a registry, by the OCI distribution API: manifests, small blobs, referrers."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from zse.oci.errors import DigestMismatchError, RegistryError
from zse.oci.layout.manifest import (
    INDEX_TYPES,
    MALFORMED,
    MEDIA_TYPE_DOCKER_MANIFEST,
    MEDIA_TYPE_INDEX,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    digest_of,
)
from zse.oci.registry.connection import Answer, Call, Connection
from zse.oci.registry.credentials import find_credentials
from zse.oci.registry.sign_in import Scope

if TYPE_CHECKING:
    from pathlib import Path

    from zse.oci.registry.reference import Reference

_ACCEPT = ", ".join([*sorted(INDEX_TYPES), MEDIA_TYPE_MANIFEST, MEDIA_TYPE_DOCKER_MANIFEST])


class Registry(Connection):
    """One repository of one registry, and what is read from it and written to it."""

    # --- reading -----------------------------------------------------------------------------

    def manifest(self, identifier: str) -> bytes:
        """Return a manifest by tag or digest, its digest checked.

        Raises:
            RegistryError: The registry has no such manifest.
            DigestMismatchError: The bytes are not what the digest says.
        """
        return self._manifest(identifier).content

    def referrers(self, digest: str) -> list[Descriptor]:
        """Return what refers to a manifest: by the registry's API, else by the agreed tag."""
        headers, accept = {"Accept": MEDIA_TYPE_INDEX}, (200, 400, 404, 405)
        answer = self.send(Call(location=f"referrers/{digest}", headers=headers, accept=accept))
        if answer.status == 200:
            return _listed(answer.content, f"the referrers of {digest}")
        return self.tagged_referrers(digest)

    def tagged_referrers(self, digest: str) -> list[Descriptor]:
        """Return what the agreed tag lists, where the registry has no API for referrers."""
        tag = referrers_tag(digest)
        found = self._manifest(tag, accept=(200, 404))
        return _listed(found.content, f"the tag {tag}") if found.status == 200 else []

    def has_blob(self, digest: str) -> bool:
        return self.push("HEAD", f"blobs/{digest}", accept=(200, 404)).status == 200

    def _manifest(self, identifier: str, *, accept: tuple[int, ...] = (200,)) -> Answer:
        headers = {"Accept": _ACCEPT}
        answer = self.send(Call(location=f"manifests/{identifier}", headers=headers, accept=accept))
        digest = digest_of(answer.content)
        if answer.status == 200 and identifier.startswith("sha256:") and identifier != digest:
            raise DigestMismatchError(f"manifest {identifier} arrived with digest {digest}")
        return answer

    # --- writing -----------------------------------------------------------------------------

    def push(self, method: str, location: str, **options: Any) -> Answer:
        """Send a call that may change the repository; options are the fields of the call."""
        return self.send(Call(method=method, location=location, scope=Scope.PUSH, **options))

    def check_push(self) -> None:
        """Ask for room for a blob, as a push does first, and give it back.

        Raises:
            RegistryAuthError: The registry does not let this user push here.
            RegistryError: It cannot be reached, or refuses.
        """
        started = self.push("POST", "blobs/uploads/", body=b"", accept=(202,), retries=1)
        with suppress(RegistryError):  # some know no way to end it; they forget it by themselves
            self.push("DELETE", started.location, accept=(200, 202, 204), retries=0)

    def push_manifest(self, identifier: str, content: bytes, media_type: str) -> bool:
        """Store a manifest under a tag or its digest.

        Returns:
            Whether the registry took note of the manifest's subject, so that it lists it there.

        Raises:
            DigestMismatchError: The registry says it stored other bytes.
        """
        answer = self.push(
            "PUT",
            f"manifests/{identifier}",
            body=content,
            headers={"Content-Type": media_type},
            accept=(200, 201, 202),
        )
        digest = digest_of(content)
        stored = answer.headers.get("docker-content-digest", digest)
        if stored != digest:
            raise DigestMismatchError(f"the registry rewrote the manifest {digest} to {stored}")
        return bool(answer.headers.get("oci-subject"))


def open_registry(
    reference: Reference,
    auth_file: Path,
    *,
    mounts: frozenset[str] = frozenset(),
    is_hurried: bool = False,
) -> Registry:
    """Open a repository with the credentials that docker's config.json has for its host.

    Raises:
        RegistryAuthError: The credentials cannot be read.
    """
    credentials = find_credentials(reference.host, auth_file.expanduser())
    return Registry(reference, credentials, mounts=mounts, is_hurried=is_hurried)


def referrers_tag(digest: str) -> str:
    """Return the tag that lists what refers to a manifest, where the registry has no API for it."""
    return digest.replace(":", "-", 1)


def _listed(content: bytes, what: str) -> list[Descriptor]:
    try:
        return [Descriptor.from_json(item) for item in json.loads(content).get("manifests", ())]
    except MALFORMED as error:
        raise RegistryError(f"{what} holds no index: {error}") from error
