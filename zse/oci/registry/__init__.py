"""Registries: addresses, credentials, and blobs and manifests up and down."""
