"""One folder per operation: how to launch it, its compiled forms, its reference, its kernels."""
