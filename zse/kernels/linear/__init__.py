"""linear: a matrix in any scheme times activations, for a few rows, some, or many."""
