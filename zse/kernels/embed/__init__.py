"""embed: the rows of the embedding that the tokens name."""
