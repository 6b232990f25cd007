"""Why a request over the network failed, in plain words: those of obstore, botocore, aiohttp and Python brought to one wording.

Imports none of these libraries: it reads their texts. Shows the host of an address alone, and of an answer its status.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_HOST = re.compile(r"""(?:https?://|to host )(?:[^/\s"']*@)?([\w.\[\]:-]*\w\]?)""")
_ADDRESS = re.compile(r"""(?:\w+://|to host )[^\s"']+""")
_STATUS = re.compile(r"status code: (\d{3}[\w -]*(?:, \w+)?)")
# What no other try changes, whatever the status: of S3's codes, and in the words of obstore.
_LASTING = (
    (r"\bRequestTimeTooSkewed\b", "the clock of this machine is not that of {}: set it"),
    (
        r"\bPermanentRedirect\b|\bAuthorizationHeaderMalformed\b|\(301\) when calling|redirect without LOCATION",
        "the bucket is in another region: set AWS_REGION to it",
    ),
    (r"error following redirect|TooManyRedirects", "{} redirects without an end"),
    (r"non-partial response", "{} gives no ranges of bytes"),
)
# The first that fits: a connection that is not made for want of an address is none of those behind.
_KINDS = (
    (r"certificate|UnknownIssuer", "the certificate of {} is not valid"),
    (r"dns error|failed to lookup|getaddrinfo|name resolution|Name or service|nodename", "{} has no address in DNS"),
    (r"InvalidContentType|WRONG_VERSION_NUMBER", "{} does not speak TLS"),
    (r"kind: Connect\b|refused|(?:Could not|Cannot) connect|Connect call failed", "no server answers at {}"),
    (r"(?i)(?<!_)time(?:d )?out\b|kind: Timeout", "{} gives no answer in time"),
    (
        r"body error|payload is not|Incomplete(?:Read|Message)|reset by peer|disconnected",
        "{} ends the connection early",
    ),
)


def failure(error: BaseException, text: str) -> str:
    """Say in a few words, without a full stop, why a request failed.

    Args:
        error: that of a library.
        text: its own words in one line, without credentials: what is returned where nothing plainer is known.
    """
    if isinstance(error, FileNotFoundError) or getattr(error, "filename", None):
        # of a file or an object, whose name may be any word; of a connection there is none
        return text
    said = _said(error)
    found = _HOST.search(said)
    host = found[1] if found else "the server"
    if lasting := _lasting(said):
        return lasting.format(host)
    if status := _STATUS.search(text):
        return f"{host} answers {status[1].strip()}"
    # not by an address: a folder may be named certificates
    bare = _ADDRESS.sub("", said)
    return next((words.format(host) for pattern, words in _KINDS if re.search(pattern, bare)), text)


def is_lasting(error: BaseException) -> bool:
    """Whether another try would fail in the same way: by the clock, the region, redirects, or a server without ranges."""
    return bool(_lasting(_said(error)))


def _lasting(said: str) -> str:
    # not by the name of an object
    bare = _ADDRESS.sub("", said)
    return next((words for pattern, words in _LASTING if re.search(pattern, bare)), "")


def _said(error: BaseException) -> str:
    return "\n".join(map(str, _chain(error)))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
