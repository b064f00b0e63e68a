"""What a model thinks before it answers: how it is told from the answer."""
