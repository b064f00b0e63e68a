"""What can go wrong with images: a class for what is caught, a rule for the rest."""

from __future__ import annotations

from zse.errors import BrokenRule, ImageError


class BadReferenceError(ImageError):
    """An image reference, platform or base cannot be parsed."""

    exit_code = 2


class DigestMismatchError(ImageError):
    """Bytes do not have the digest that names them."""

    default_hint = "The copy is damaged or was changed: delete it and fetch it again."


class LockError(ImageError):
    """A lock file is missing, stale or contradicts the recipe."""

    default_hint = "Run `zse build-image ... --update-lock` to resolve again and write the lock."


class RegistryError(ImageError):
    """A registry refused a request or could not be reached."""


class RegistryAuthError(RegistryError):
    """The registry wants credentials, or refused the ones it was given."""

    default_hint = "Log in first (docker login HOST), or check that you may use this repository."


class LayoutError(ImageError):
    """A folder is not an OCI image layout, or lacks what was asked of it."""


class ImageRule(BrokenRule):
    """What else an ``ImageError`` is about."""

    def __call__(self, message: str, *, hint: str = "") -> ImageError:
        return ImageError(message, hint=hint, rule=self)

    DEBIAN = "debian"
    """A Debian archive could not be read, or a package could not be resolved."""
    SIGNATURE = "signature"
    """An index is not signed by the key it must be signed by."""
    WHEEL = "wheel"
    """A wheel could not be fetched or is not what its RECORD says."""
    UNSAFE_ARCHIVE = "unsafe_archive"
    """An archive holds a path that would land outside its folder, or a file it does not list."""
    IMAGE_TOO_LARGE = (
        "image_too_large",
        "Raise --max-size, or take out what is large: the layers are listed above.",
    )
    """An image has more bytes than it may have."""
    VERIFICATION = (
        "verification",
        "Build the image again, and push it again if it is in a registry.",
    )
    """An image is not what its locks, its base or its documents say."""
