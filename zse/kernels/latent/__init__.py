"""Latent attention: what is kept of a token, and the products of each head beside it."""
