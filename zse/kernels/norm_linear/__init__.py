"""norm_linear: RMSNorm of the residual stream, then a matrix, then a bias if there is one."""
