"""pool: the vector of a whole text, from the normed states of its tokens."""
