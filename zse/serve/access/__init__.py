"""Who may do what: API keys, callers, limits. Keys are looked at only where there are some."""
