"""Speculation: who guesses the next tokens, how many it pays to check, and how often they stood."""
