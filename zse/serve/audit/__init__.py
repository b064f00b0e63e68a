"""Who asked what, and what it cost: one line for each request, never what was said in it."""
