"""One folder per operation: the contract, a reference in torch, a Triton kernel."""
