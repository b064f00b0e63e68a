"""attention: causal, grouped-query, windowed if asked, over the slots of one sequence."""
