"""Calibration: what a text makes of each matrix's inputs, and codes that mind it.

A model reads a text layer by layer, in float32. What a matrix is given there says which of its
errors count: its codes are then chosen so that its outputs on such inputs change least.
"""
