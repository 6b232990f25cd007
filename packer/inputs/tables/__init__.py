"""Tables of labels, .csv, .tsv, .jsonl and .parquet, and what their columns mean: classes, targets, extras, texts.

Knows no folder and no archive. Opens no image.
"""
