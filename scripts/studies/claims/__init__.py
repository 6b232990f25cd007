"""Claims of others about loading images, each measured by one module."""
