"""zInfer: requests become tokens."""
