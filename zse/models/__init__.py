"""Model families: each is a short program over the operations of a backend."""
