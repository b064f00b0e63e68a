"""Grammars: what an answer may look like, and which tokens keep it so."""
