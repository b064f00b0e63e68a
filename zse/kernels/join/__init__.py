"""Embeddings of tokens beside the states that come with them, each by its norm."""
