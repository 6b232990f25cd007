"""Listers of IMAGES: folders, lists, tables, tars, zips, object storage; with classes, targets and labels.

Reads names, columns and label files. Never opens an image.
"""
