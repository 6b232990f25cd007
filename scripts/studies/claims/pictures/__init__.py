"""Claims about JPEGs, decoding and augmentation."""
