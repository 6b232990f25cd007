"""Images to try the packages with, drawn from numbers. Measures nothing."""
