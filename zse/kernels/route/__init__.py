"""route: which experts a token goes through, and with which weights."""
