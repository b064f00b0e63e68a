"""lm_head_sample: final norm, the head, and one token chosen for each row."""
