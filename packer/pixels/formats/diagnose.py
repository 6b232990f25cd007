"""Why bytes are no image that can be decoded, in words that a person understands.

Looks at bytes and at the message of the library that refused them; decodes nothing.
"""

from __future__ import annotations

import re

_KNOWN = (
    (b"\x89PNG", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"RIFF", "WebP"),
)
# Pillow's messages about pixel data that it cannot decode, and what they mean.
_PLAIN = (
    # of JPEG XL and HEIC: what follows is for their developers
    (r"^Generic Error", "it is damaged or cut short"),
    (r"outside of file bounds|image file is truncated|Truncated File Read|not enough image data", "it is cut short"),
    (r"decoder error -|data stream|cannot load this image", "its pixel data is damaged"),
    (r"could not create decoder object", "its pixel data is cut short or damaged"),
)
_FOREIGN = (
    (b"%!PS", "a PostScript file"),
    (b"%PDF", "a PDF"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\0\x05\x16\x07", "a macOS resource file (AppleDouble)"),
)


def explain(data: bytes, problem: str | None) -> str:  # noqa: C901, PLR0911 (a return for each cause)
    """Say in plain words why data is no image that can be decoded.

    problem: Pillow's message; None: it knows no such format.
    """
    if not data:
        return "the file is empty"
    if not any(data[:4096]):
        return "it holds only NUL bytes, as a file does whose content was lost in a crash"
    head = data[:512].lstrip().lower()
    if head.startswith(b"version https://git-lfs"):
        return "it is a git-LFS pointer, not the image; run git lfs pull"
    if head.startswith((b"<!doctype html", b"<html")) or b"<html" in head:
        return "it is an HTML page, as a failed download leaves"
    if head.startswith((b"<?xml", b"<svg")) and b"<svg" in data[:4096].lower():
        return "it is an SVG drawing, which has no pixels"
    for magic, name in _FOREIGN:
        if data.startswith(magic):
            return f"it is {name}, not an image"
    if problem is None:
        if data[:2] == b"\xff\xd8":
            return "it begins as a JPEG but its header is damaged or cut short"
        for magic, name in _KNOWN:
            if data.startswith(magic):
                return f"it begins as a {name} but its header is damaged or cut short"
        if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in data[:256]):
            return "it is text, not an image"
        return "it is in no known image format"
    reason = plain(problem)
    for pattern, words in _PLAIN:
        if re.search(pattern, reason):
            return words
    if re.search(r"truncat|not enough|unexpected end|premature", reason, re.I) or data[:2] == b"\xff\xd8":
        return f"it is cut short or damaged ({reason})"
    return f"it is damaged ({reason})"


def plain(message: str) -> str:
    """Take out of a library's message what says nothing to a person."""
    return re.sub(r"<_io\.\w+[^>]*>", "the file", message).strip().rstrip(".") or "no reason given"
