"""The dozen operations on a GPU: kernel packs, raw buffers, graphs; no torch."""
