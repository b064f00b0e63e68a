"""The dozen operations on an NVIDIA GPU: kernel packs, raw buffers, graphs; no torch."""
