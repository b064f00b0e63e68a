"""A ready replica is a source: ranges of its file, behind a shared secret, held to digests."""
