"""What is wrong with this machine, its settings, a model or an image, and what mends it."""
