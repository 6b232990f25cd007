"""Transforms of images that keep sizes of their own, with boxes: torchvision's for detection, and what detectors take."""
