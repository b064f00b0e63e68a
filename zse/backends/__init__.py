"""Backends: the dozen operations, executed on one kind of device."""
