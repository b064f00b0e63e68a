"""linear_residual: a matrix, added to the residual stream."""
