"""Texts as vectors: embeddings, and what is made of their angles. Imported by its first request."""
