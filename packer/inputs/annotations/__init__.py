"""Boxes and masks: COCO and YOLO files read, matched to inputs, checked, and moved to where rows have them.

Never decodes a photograph.
"""
