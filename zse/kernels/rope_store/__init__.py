"""rope_store: head norms if the model has them, rotary positions, keys and values into the cache."""
