"""Mixed precision: a scheme for each weight, so that a file has the size that was asked for.

How much of each matrix's outputs every scheme loses is measured; bits go where they save most.
"""
