"""HTTP itself: the parser and its limits, the shell around every route, streams, errors."""
