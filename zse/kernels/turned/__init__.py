"""turned: norms and gates that leave what the 8-bit products of many tokens read.

Each is an operation of another folder whose result would be 16-bit activations, turned and rounded
as ``linear.turn_tokens`` does it, in one pass over the data.
"""
