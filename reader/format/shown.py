"""Text from a store or an input, made safe to show: control characters escaped, credentials of URLs left out.

Untrusted text must not move the cursor, clear the screen, or reverse the order of letters. Names that are not UTF-8 must not
crash the command that shows them.
"""

from __future__ import annotations

import re
import reprlib

# C0, DEL and C1 (ESC and CSI are among them); soft hyphens, marks and overrides of direction, invisible operators, tags; line and
# paragraph separators; lone surrogates, as in names that are not UTF-8. Joiners (U+200C, U+200D) belong to letters.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_HIDDEN_BUT_LINES = re.compile(_HIDDEN.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))

# user:secret@ before a host, with one slash if pathlib has handled the URL; after the next slash, an @ belongs to the path
_USER = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]+)(:/{1,3})([^/?#\s\"'@]*(?:@[^/?#\s\"'@]*)*)@")
# schemes of Azure, where container@account is no secret
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")
_TOKEN = re.compile(
    r"([?&;](?:x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|awsaccesskeyid|googleaccessid"
    r"|sig|signature|[a-z_-]*token|key|[a-z_-]*(?:api|access|account)[_-]?key|[a-z_-]*secret|password|pwd)=)"
    r"[^&;#\s\"']+",
    re.IGNORECASE,
)

_BRIEF_CHARACTERS, _BRIEF_ITEMS = 60, 4
_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = _BRIEF_CHARACTERS
_BRIEF.maxlist = _BRIEF.maxtuple = _BRIEF.maxdict = _BRIEF_ITEMS


def shown(text: str, most: int = 0) -> str:
    """Return text on one line with control characters escaped as Python does; most: the length to cut it to, or 0.

    Example:
        >>> print(shown("cat\\x1b[2J\\n"), shown("abcdef", most=3))
        cat\\x1b[2J\\n abc...
    """
    if most and len(text) > most:
        text = text[:most] + "..."
    return _HIDDEN.sub(_escaped, text)


def shown_lines(text: str) -> str:
    """Return text as `shown` does, but keep its line feeds and tabs: it was joined from `shown` pieces."""
    return _HIDDEN_BUT_LINES.sub(_escaped, text)


def brief(value: object) -> str:
    """Return the repr of a store's value, cut to some 60 characters."""
    return shown(_BRIEF.repr(value), most=4 * _BRIEF_CHARACTERS)


def redacted(text: str) -> str:
    """Return text with the credentials of its URLs as ***: names and passwords before the host, and tokens of the query.

    Example:
        >>> redacted("s3://key:secret@bucket/a is gone"), redacted("https://host/a?sig=abc&v=1")
        ('s3://***@bucket/a is gone', 'https://host/a?sig=***&v=1')
    """
    return _TOKEN.sub(r"\1***", _USER.sub(_without_user, text)) if ":/" in text else text


def _without_user(match: re.Match[str]) -> str:
    scheme, slashes, user = match.groups()
    is_container = scheme.lower() in _CONTAINERS and ":" not in user
    # after file:/// a name is a folder's
    return match[0] if is_container or (scheme.lower() == "file" and slashes == ":///") else f"{scheme}{slashes}***@"


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
