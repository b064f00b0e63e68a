"""Container images as data: layers, images, registries and layouts, with no daemon."""
