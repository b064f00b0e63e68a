"""The hardware, asked in one place.

``probe`` looks at the machine once, ``open`` opens a GPU by its name. Nothing here imports torch:
on Linux the kernel's own files say what is needed.
"""
