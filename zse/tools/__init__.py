"""Tools that this process may run for a model: their names, what they take, what they do."""
