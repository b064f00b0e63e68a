"""Models: what they are, as data, and the one program that runs them on a backend."""
