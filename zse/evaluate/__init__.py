"""zEval: how good a model still is, measured: likelihood of a text, distance from another model.

Nothing here is on the path of a server. What compares numbers stands on numpy, what runs a
checkpoint in floating point on transformers, each imported by the file named for it.
"""
