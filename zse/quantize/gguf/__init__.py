"""GGUF, llama.cpp's format, read as a checkpoint: weights, settings and texts out of one file.

The format is that of ``ggml/docs/gguf.md``. A file is read as a hostile one: every count, length
and offset is checked before it is used.
"""
