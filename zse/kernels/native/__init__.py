"""A processor's kernels: a step of a model as one call into a library of C.

``zse.h`` is the interface, ``build.py`` compiles a library for each set of instructions, and
``library.py`` loads the best one that this processor runs. At run time no compiler is needed.
"""
