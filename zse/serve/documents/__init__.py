"""Documents that answers stand on: read, cut into chunks, kept, searched and cited."""
