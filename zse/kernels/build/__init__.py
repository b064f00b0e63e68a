"""Builds kernel packs: compiles every variant with triton, on a machine that needs no GPU."""
