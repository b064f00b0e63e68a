"""delta: linear attention by the gated delta rule, over a state of fixed size for each sequence."""
