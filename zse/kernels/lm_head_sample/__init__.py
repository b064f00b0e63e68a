"""lm_head_sample: final norm, the head, and the most likely token of each row."""
