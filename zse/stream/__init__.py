"""zStream: a .zse file's bytes to the GPU at the speed of the link, from disk or object storage."""
