"""sparse: attention over the blocks that a mask names, for torch tensors; no part of packs."""
