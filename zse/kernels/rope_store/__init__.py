"""rope_store: head norms if there are any, rotary positions, keys and values into the cache."""
