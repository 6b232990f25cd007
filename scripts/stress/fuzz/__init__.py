"""Random commands, images and calls of the compiled part."""
