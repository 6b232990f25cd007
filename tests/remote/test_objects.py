"""Requests: retried while it helps, for so long; then one sentence that names the object and no secret."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from range_server import RangeServer, Trouble, serving

from reader.format.errors import LibraryError, MissingObjectError, StoreError, UnreachableError
from reader.format.manifest import MANIFEST, PIXELS
from reader.remote.failures import Kind, failure_of
from reader.remote.objects import Objects


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIXPACK_REMOTE_SECONDS", "2")


def test_an_object_is_read_completely_and_in_part(range_server: RangeServer, many_blocks: Path) -> None:
    found, data = Objects(range_server.url), (many_blocks / PIXELS).read_bytes()
    assert bytes(found.read(PIXELS)) == data
    assert bytes(found.read(PIXELS, 100, 5000)) == data[100:5000]


@pytest.mark.parametrize("seconds", ["2m", "0", "-1", "nan", "inf"])
def test_for_how_long_a_request_is_tried_is_a_number(seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIXPACK_REMOTE_SECONDS", seconds)
    with pytest.raises(
        StoreError, match=rf"PIXPACK_REMOTE_SECONDS is '{seconds}', expected a number of seconds above 0"
    ):
        Objects("http://127.0.0.1:9/out")


def test_a_local_folder_is_a_url_too(many_blocks: Path) -> None:
    found = Objects(f"file://{many_blocks}")
    assert bytes(found.read(PIXELS, 7, 77)) == (many_blocks / PIXELS).read_bytes()[7:77]


@pytest.mark.parametrize("trouble", [500, 503, 429, "cut", "stall"])
def test_what_passes_is_retried(range_server: RangeServer, many_blocks: Path, trouble: Trouble) -> None:
    range_server.trouble = lambda name, count: trouble if count < 2 else None
    data = Objects(range_server.url).read(PIXELS, 0, 200_000)
    assert bytes(data) == (many_blocks / PIXELS).read_bytes()[:200_000]
    assert range_server.asked.total() == 3


@pytest.mark.parametrize(
    ("trouble", "kind", "says"),
    [
        (
            503,
            UnreachableError,
            "cannot be read: (127.0.0.1:[0-9]+|the server) answers 503 Service Unavailable. It was tried [0-9]+ times in [0-9] s",
        ),
        ("cut", UnreachableError, "cannot be read: .* ends the connection early. It was tried"),
        (404, MissingObjectError, "does not exist, or nothing shows it to these credentials"),
        (403, StoreError, "access is denied .*403 Forbidden.*. Set AWS_ACCESS_KEY_ID"),
        (400, StoreError, "cannot be read: .*400 Bad Request.$"),
    ],
)
def test_what_stays_is_one_sentence(
    range_server: RangeServer, trouble: Trouble, kind: type[StoreError], says: str
) -> None:
    range_server.trouble = lambda name, count: trouble
    with pytest.raises(kind, match=says) as caught:
        Objects(range_server.url).read(PIXELS, 0, 1000)
    text = str(caught.value)
    assert text.startswith(f"{range_server.url}/{PIXELS} ")
    assert "secret" not in f"{text}{caught.value.__cause__}"
    assert "\n" not in text
    assert (range_server.asked.total() == 1) is (kind is not UnreachableError)


def test_an_object_that_was_cut_short_is_named(range_server: RangeServer, many_blocks: Path) -> None:
    size = (many_blocks / PIXELS).stat().st_size
    with pytest.raises(
        StoreError, match=f"{PIXELS} ends at byte {size}, expected {size + 5} or more: it was cut short"
    ):
        Objects(range_server.url).read(PIXELS, 10, size + 5)
    with pytest.raises(StoreError, match=f"{PIXELS} is shorter than its manifest says"):
        Objects(range_server.url).read(PIXELS, size, size + 5)


def test_a_server_that_is_not_there_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIXPACK_REMOTE_SECONDS", "0.3")
    says = r"http://127.0.0.1:9/out/x cannot be read: no server answers at 127\.0\.0\.1:9\. It was tried"
    with pytest.raises(UnreachableError, match=says) as caught:
        Objects("http://127.0.0.1:9/out").read("x")
    # what the library said, as the cause
    assert "127.0.0.1:9" in str(caught.value.__cause__)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nothing does not exist. Expected the folder of a store"):
        Objects(f"file://{tmp_path}/nothing").read("x")


def test_without_obstore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreError, match=r"s3://bucket/out needs obstore, .*: pip install 'pixpack\[remote\]'"):
        Objects("s3://bucket/out")


def test_a_local_folder_needs_no_library(many_blocks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    found = Objects(many_blocks.as_uri())
    assert bytes(found.read(PIXELS, 7, 77)) == (many_blocks / PIXELS).read_bytes()[7:77]
    assert found.size(PIXELS) == (many_blocks / PIXELS).stat().st_size


def test_a_server_that_gives_no_ranges_is_one_sentence(range_server: RangeServer) -> None:
    range_server.trouble = lambda name, count: 200
    with pytest.raises(StoreError, match=f"{PIXELS} cannot be read: its server gives no ranges of bytes"):
        Objects(range_server.url).read(PIXELS, 0, 1000)


@pytest.mark.parametrize("body", ["<Error><Code>SlowDown</Code><AWSAccessKeyId>AKIAhush</AWSAccessKeyId></Error>"])
def test_the_code_of_an_answer_is_reported_and_not_its_body(body: str) -> None:
    error = ValueError(
        f"Error GET http://h/x?X-Amz-Credential=hush - Server returned non-2xx status code: 503 Busy: {body}"
    )
    assert (
        failure_of(error).text
        == "Error GET http://h/x?X-Amz-Credential=*** - Server returned non-2xx status code: 503 Busy, SlowDown"
    )


@pytest.mark.parametrize(
    ("reported", "plain"),
    [
        ("request to http://u:p@h.invalid:80/x: dns error", "h.invalid:80 has no address in DNS"),
        (
            "Cannot connect to host h.invalid:443 ssl:default [Name or service not known]",
            "h.invalid:443 has no address in DNS",
        ),
        (
            'Could not connect to the endpoint URL: "http://127.0.0.1:9/b?list-type=2"',
            "no server answers at 127.0.0.1:9",
        ),
        ('Read timeout on endpoint URL: "https://h/b"', "h gives no answer in time"),
        ("Error GET https://h/b: invalid peer certificate: UnknownIssuer", "the certificate of h is not valid"),
        ("GET https://[::1]:9/b - non-2xx status code: 503 Busy, SlowDown", "[::1]:9 answers 503 Busy, SlowDown"),
        (
            "GET https://h/timeout/certificates/x: connection closed",
            "GET https://h/timeout/certificates/x: connection closed",
        ),
        ("https://h/b kind: Connect, InvalidMessage(InvalidContentType)", "h does not speak TLS"),
        ("Cannot connect to host h:80 [[SSL: WRONG_VERSION_NUMBER] wrong version]", "h:80 does not speak TLS"),
        ("GET http://h/b - hyper::Error(IncompleteMessage)", "h ends the connection early"),
        ("s3://bucket/timeout is damaged", "s3://bucket/timeout is damaged"),
        ("request to http://u:p@w@h/x: connection refused", "no server answers at h"),
        ("retry_timeout: 180s - HTTP error: request or response body error", "the server ends the connection early"),
        (
            "GET http://h/b - status code: 403 Forbidden: <Code>RequestTimeTooSkewed</Code>",
            "the clock of this machine is not that of h: set it",
        ),
        (
            "An error occurred (PermanentRedirect) when calling the ListObjectsV2 operation: x",
            "the bucket is in another region: set AWS_REGION to it",
        ),
        (
            "An error occurred (301) when calling the HeadObject operation: Moved Permanently",
            "the bucket is in another region: set AWS_REGION to it",
        ),
        ("GET http://h/b - HTTP error: error following redirect", "h redirects without an end"),
        ("GET http://h/PermanentRedirect: connection closed", "GET http://h/PermanentRedirect: connection closed"),
        ("status code: 400 Bad Request", "the server answers 400 Bad Request"),
        ("The specified bucket does not exist", "The specified bucket does not exist"),
    ],
)
def test_the_words_of_a_library_are_made_plain(reported: str, plain: str) -> None:
    assert failure_of(OSError(reported)).words == plain


@pytest.mark.parametrize("error", [FileNotFoundError("certificates/a"), OSError(errno.ENOSPC, "full", "timeout/a")])
def test_the_name_of_a_file_is_no_cause(error: OSError) -> None:
    assert failure_of(error).words == str(error)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (FileNotFoundError("s3://b/x"), Kind.MISSING),
        (PermissionError("Forbidden"), Kind.DENIED),
        (PermissionError("status code: 403 Forbidden: <Code>RequestTimeTooSkewed</Code>"), Kind.SETTINGS),
        (ValueError("non-2xx status code: 401 Unauthorized"), Kind.DENIED),
        (ValueError("non-2xx status code: 416 Range Not Satisfiable"), Kind.BEHIND_END),
        (ValueError("non-2xx status code: 400 Bad Request"), Kind.LASTING),
        (ValueError("non-2xx status code: 429 Too Many Requests"), Kind.PASSING),
        (ValueError("non-2xx status code: 503 Busy"), Kind.PASSING),
        (ValueError("http://h/401: connection closed"), Kind.PASSING),
        (ValueError("GET http://169.254.169.254/latest: timed out"), Kind.NO_CREDENTIALS),
    ],
    ids=str,
)
def test_a_failure_has_a_kind(said: Exception, kind: Kind) -> None:
    assert failure_of(said).kind == kind


@pytest.mark.parametrize(
    ("library", "variable"),
    [
        ("S3", "AWS_ACCESS_KEY_ID"),
        ("GCS", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("MicrosoftAzure", "AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_the_variables_that_are_named_are_those_of_the_storage(library: str, variable: str) -> None:
    said = ValueError(f"Generic {library} error: Error performing token request: GET http://169.254.169.254/latest")
    assert failure_of(said).advice.startswith(f"Set {variable}")


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "Permission denied"), ValueError("broken")])
def test_on_a_local_disk_nothing_passes_and_no_keys_are_asked_for(
    many_blocks: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("reader.remote.objects.open_regular", fail)
    with pytest.raises(StoreError) as caught:
        Objects(f"file://{many_blocks}").read(PIXELS, 0, 4)
    assert "cannot be read" in str(caught.value)
    assert "AWS" not in str(caught.value)


@pytest.mark.parametrize("status", ["400 Bad Request: <Code>RequestTimeout</Code>", "409 Conflict", "410 Gone"])
def test_what_an_upload_may_be_tried_again_for_is_no_refusal(status: str) -> None:
    from packer.sources.object_storage import is_refused

    assert not is_refused(ValueError(f"non-2xx status code: {status}"))
    assert is_refused(PermissionError("Forbidden"))


@pytest.mark.parametrize("status", [405, 501])
def test_a_server_without_head_is_asked_for_the_first_byte(
    range_server: RangeServer, many_blocks: Path, tmp_path: Path, status: int
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "pixels").symlink_to(many_blocks / PIXELS)
    range_server.root, range_server.head_status = tmp_path, status
    found = Objects(range_server.url)
    assert found.size("pixels") == (many_blocks / PIXELS).stat().st_size
    assert found.size("empty") == 0
    assert [span for span in range_server.asked.elements() if span[0] == "pixels"] == [("pixels", 0, 1)]
    with pytest.raises(MissingObjectError, match="none does not exist"):
        found.size("none")


# -- a server of S3 that fails


@pytest.fixture
def failing_s3(many_blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """The store as s3://bucket/out, on a server whose answers may be anything."""
    (tmp_path / "root/bucket").mkdir(parents=True)
    (tmp_path / "root/bucket/out").symlink_to(many_blocks)
    settings = {"AWS_ACCESS_KEY_ID": "some", "AWS_SECRET_ACCESS_KEY": "thing", "AWS_REGION": "us-east-1"}
    settings |= {"AWS_SHARED_CREDENTIALS_FILE": os.devnull, "AWS_CONFIG_FILE": os.devnull}
    with serving(tmp_path / "root") as server:
        for name, value in (settings | {"AWS_ENDPOINT_URL": server.url}).items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.parametrize("trouble", [500, 503, 429, "cut", "stall"])
def test_what_passes_is_retried_of_s3_too(failing_s3: RangeServer, many_blocks: Path, trouble: Trouble) -> None:
    failing_s3.trouble = lambda name, count: trouble if count < 2 else None
    data = Objects("s3://bucket/out").read(PIXELS, 0, 200_000)
    assert bytes(data) == (many_blocks / PIXELS).read_bytes()[:200_000]
    assert failing_s3.asked.total() == 3


@pytest.mark.parametrize(
    ("trouble", "kind", "says"),
    [
        (503, UnreachableError, "cannot be read: .*. It was tried [0-9]+ times in [0-9] s"),
        ("cut", UnreachableError, "cannot be read: .*. It was tried"),
        (404, MissingObjectError, "does not exist, or nothing shows it to these credentials"),
        (403, StoreError, "access is denied .*403 Forbidden.*. Set AWS_ACCESS_KEY_ID"),
        (301, StoreError, "cannot be read: the bucket is in another region: set AWS_REGION to it.$"),
        (400, StoreError, "cannot be read: .*400 Bad Request.$"),
    ],
)
def test_what_stays_is_one_sentence_of_s3_too(
    failing_s3: RangeServer, trouble: Trouble, kind: type[StoreError], says: str
) -> None:
    failing_s3.trouble = lambda name, count: trouble
    with pytest.raises(kind, match=says) as caught:
        Objects("s3://bucket/out").read(PIXELS, 0, 1000)
    text = str(caught.value)
    assert text.startswith(f"s3://bucket/out/{PIXELS} ")
    assert "secret" not in text
    assert "\n" not in text
    assert (failing_s3.asked.total() == 1) is (kind is not UnreachableError)


def test_an_object_of_s3_that_was_cut_short_is_named(failing_s3: RangeServer, many_blocks: Path) -> None:
    size = (many_blocks / PIXELS).stat().st_size
    with pytest.raises(StoreError, match=f"{PIXELS} ends at byte {size}, expected {size + 5} or more"):
        Objects("s3://bucket/out").read(PIXELS, 10, size + 5)
    with pytest.raises(StoreError, match=f"{PIXELS} is shorter than its manifest says"):
        Objects("s3://bucket/out").read(PIXELS, size, size + 5)
    assert bytes(Objects("s3://bucket/out").read(MANIFEST)) == (many_blocks / MANIFEST).read_bytes()


def test_a_server_of_s3_that_is_not_there_is_given_up(failing_s3: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    says = r"s3://bucket/out/x cannot be read: no server answers at 127\.0\.0\.1:9\. It was tried"
    with pytest.raises(UnreachableError, match=says) as caught:
        Objects("s3://bucket/out").read("x")
    assert isinstance(caught.value.__cause__, LibraryError)


def test_a_bucket_without_a_name_that_s3_has_is_one_sentence(failing_s3: RangeServer) -> None:
    with pytest.raises(StoreError, match=r"s3://No_Bucket~/out") as caught:
        Objects("s3://No_Bucket~/out").read("x")
    assert "\n" not in str(caught.value)
