"""A ``.zse`` file as an image of its own: layers that are not compressed, read in ranges."""
