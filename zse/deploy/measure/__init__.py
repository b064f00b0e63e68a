"""The cold start, measured: start the thing as a platform would, wait, ask, stop, and again."""
