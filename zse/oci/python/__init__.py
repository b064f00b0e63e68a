"""What an image's Python gets: locked wheels and byte code."""
