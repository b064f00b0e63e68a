"""A base system from Debian packages, signed indexes to files, without apt."""
