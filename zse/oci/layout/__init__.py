"""What an image is made of: tar entries, compressed layers, manifests, and layouts on disk."""
