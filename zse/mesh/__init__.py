"""Several machines as one pipeline: which layers each computes, and what follows a loss."""
