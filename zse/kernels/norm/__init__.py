"""norm: the residual stream's pending sums, RMSNorm, and activations for the next matrix."""
