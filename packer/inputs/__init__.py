"""What IMAGES may be, listed: folders, lists, tables, tars, zips, object storage; with classes, targets and labels.

Reads names, columns and label files. Never opens an image.
"""
