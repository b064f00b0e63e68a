"""Images from recipes: built, published, read back and verified."""
