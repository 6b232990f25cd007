"""What a request over the network failed of: the one place that reads the words of obstore, botocore, aiohttp and Python.

Imports none of these libraries. Shows the host of an address alone, and of an answer its status and code, not its body, which may
repeat credentials.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

from reader.format.shown import redacted

_HOST = re.compile(r"""(?:https?://|to host )(?:[^/\s"']*@)?([\w.\[\]:-]*\w\]?)""")
_ADDRESS = re.compile(r"""(?:\w+://|to host )[^\s"']+""")
# Behind the status of an answer comes its body; only its code counts.
_ANSWER = re.compile(r"status code: (\d{3})[^:]*")
_STATUS = re.compile(r"status code: (\d{3}[\w -]*(?:, \w+)?)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_CONNECTION = re.compile(r"kind: (Timeout|Interrupted|Connect)")
# botocore takes the text before the bucket for its name
_BUCKET = re.compile(r'(bucket name ")[^"]*@')
_METADATA_SERVER = "169.254.169.254"
# Answers of 4xx that mean "later", and of a range that begins behind the object's end (RFC 9110, 15.5.17).
_PASSING, _BEHIND_END = (408, 425, 429), 416
# Failures that no other try changes, whatever the status: S3's codes, and words of obstore.
_LASTING = (
    (r"\bRequestTimeTooSkewed\b", "the clock of this machine is not that of {}: set it"),
    (
        r"\bPermanentRedirect\b|\bAuthorizationHeaderMalformed\b|\(301\) when calling|redirect without LOCATION",
        "the bucket is in another region: set AWS_REGION to it",
    ),
    (r"error following redirect|TooManyRedirects", "{} redirects without an end"),
    (r"non-partial response", "{} gives no ranges of bytes"),
)
# The first that fits: a connection that fails for want of an address is none of those behind.
_WORDS = (
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
# What to set, by a word of the library's error.
_CREDENTIALS = (
    ("GCS", "Set GOOGLE_APPLICATION_CREDENTIALS to the file of a key"),
    ("Azure", "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
    ("", "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what your storage asks for"),
)


class Kind(enum.Enum):
    """Whether another try may succeed, and who can change that."""

    PASSING = "another try may succeed"
    MISSING = "there is no such object"
    NO_CREDENTIALS = "there are no credentials"
    DENIED = "these credentials may not"
    NO_RANGES = "the server gives no ranges of bytes"
    BEHIND_END = "the object ends before the range"
    SETTINGS = "settings of this machine or of the server are wrong"
    LASTING = "something else that stays"


@dataclass(frozen=True)
class Failure:
    """Why a request failed.

    status: of the answer; 0: there is none.
    words: in a few words, without a full stop. text: what the library says, in one line without credentials.
    """

    kind: Kind
    status: int
    words: str
    text: str

    @property
    def advice(self) -> str:
        """Say which credentials to set, without a full stop."""
        return next(advice for word, advice in _CREDENTIALS if word in self.text)


def failure_of(error: BaseException) -> Failure:
    """Return why a request failed, by the error of whatever library sent it."""
    said, text = "\n".join(map(str, _chain(error))), _text(error)
    answer = _ANSWER.search(str(error))
    status, lasting = int(answer[1]) if answer else 0, _words(_LASTING, said)
    return Failure(_kind(error, status, is_lasting=bool(lasting)), status, _reason(error, said, text, lasting), text)


def _kind(error: BaseException, status: int, *, is_lasting: bool) -> Kind:
    name = type(error).__name__
    if isinstance(error, FileNotFoundError):
        return Kind.MISSING
    if _METADATA_SERVER in str(error) or "Credentials" in name:
        return Kind.NO_CREDENTIALS
    if name == "NotSupportedError":
        return Kind.NO_RANGES
    if is_lasting:
        return Kind.SETTINGS
    if name in ("PermissionDeniedError", "UnauthenticatedError", "PermissionError") or status in (401, 403):
        return Kind.DENIED
    if status == _BEHIND_END:
        return Kind.BEHIND_END
    is_later = not status or status >= 500 or status in _PASSING
    return Kind.PASSING if is_later else Kind.LASTING


def _reason(error: BaseException, said: str, text: str, lasting: str) -> str:
    if isinstance(error, FileNotFoundError) or getattr(error, "filename", None):
        # the text names a file or an object, by any word; an error of a connection names none
        return text
    if lasting:
        return lasting
    if status := _STATUS.search(text):
        return f"{_host(said)} answers {status[1].strip()}"
    return _words(_WORDS, said) or text


def _words(table: tuple[tuple[str, str], ...], said: str) -> str:
    """Return the first of a table that fits; "": none does."""
    # not by an address: a folder may be named certificates
    bare = _ADDRESS.sub("", said)
    return next((words.format(_host(said)) for pattern, words in table if re.search(pattern, bare)), "")


def _host(said: str) -> str:
    found = _HOST.search(said)
    return found[1] if found else "the server"


def _text(error: BaseException) -> str:
    text = str(error).split("\n\nDebug source")[0]
    code, answer, connection = _CODE.search(text), _ANSWER.search(text), _CONNECTION.search(str(error))
    if answer:
        text = text[: answer.end()]
    plain = _BUCKET.sub(r"\1***@", " ".join(redacted(text).split())).rstrip(".: ")
    found = [plain, code[1] if code and answer else "", connection[1].lower() if connection else ""]
    return ", ".join(filter(None, found)) if plain and not isinstance(error, KeyError) else type(error).__name__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
