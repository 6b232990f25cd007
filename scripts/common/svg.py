"""Pictures of docs as SVGs: their colors, and a dark mode for each."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, OTHER, LIMIT, DARK, GRAY = "#0b6fa4", "#a3adb8", "#d9772b", "#26323d", "#6b7783"
WIDTH_INCHES, DPI = 9.6, 105
# First in the style of an SVG of ours.
_STYLE = '<style id="pixpack">'
# Light color -> dark color of an SVG, which shows one or the other as the reader's system asks for.
_DARK_MODE = {
    "#ffffff": "#0d1117",
    "#000000": "#9aa7b4",  # axes without a color of their own
    DARK: "#e6edf3",
    GRAY: "#9aa7b4",
    "#c5ccd3": "#46515c",
    "#e7ebee": "#262d35",
    "#dfe4e8": "#3a444e",
    OTHER: "#66717d",
    OURS: "#3f9fd3",
    LIMIT: "#e8935a",
}


def svg_bytes(figure: Figure) -> bytes:
    """Write a figure of matplotlib as an SVG with text as text, light or dark as the reader's system asks for; without a date."""
    import matplotlib as mpl

    written = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pixpack"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": "pixpack"})
    rules = "".join(
        f'[style*="{name}: {light}"]{{{name}:{dark}!important}}'
        for light, dark in _DARK_MODE.items()
        for name in ("fill", "stroke")
    )
    # text without a color of its own is black
    style = f"{_STYLE}@media (prefers-color-scheme:dark){{text:not([style*='fill']){{fill:#e6edf3}}{rules}}}</style>"
    head, tag, rest = written.getvalue().decode().partition("<defs>")
    return f"{head}{style}{tag}{rest}".encode()
