"""gate_up: RMSNorm, the joined gate and up matrix, silu(gate) * up."""
