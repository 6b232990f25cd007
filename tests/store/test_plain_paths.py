"""A path with .. behind a link, and a URL of a file, name the same folder for every command, and for the system."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import interrupted, make_tree, store_bytes

from packer import pack, pull, push, subset, update, verify
from packer.cli.app import run
from packer.store.state import check_finished
from reader import MemmapDataset
from reader.format.errors import IncompleteStoreError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A link to far/deep, so that link/.. is far; images, and a store of them."""
    (tmp_path / "far/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/deep", target_is_directory=True)
    make_tree(tmp_path / "images", classes=2, each=2)
    pack(tmp_path / "images", tmp_path / "mine", size=32, workers=1)
    return tmp_path


def test_a_command_reads_where_the_system_says_that_its_inputs_are(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is something else at the place that the text of the path names."""
    far = make_tree(root / "far/images", classes=3, each=2)
    (root / "far/list.csv").write_text("path,label\nimages/class0/000.jpg,a\n")
    pack(far, root / "far/out", size=16, workers=1)
    pack(root / "images", root / "out", size=16, workers=1)
    given = f"{root}/link/.."
    assert pack(f"{given}/images", root / "packed", size=16, workers=1).rows == 6
    assert pack(f"{given}/list.csv", root / "listed", size=16, workers=1).rows == 1
    assert len(MemmapDataset(f"{given}/out")) == 6
    assert run(["info", f"{given}/out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 6
    assert verify(f"{given}/out").problems == []
    assert subset(f"{given}/out", root / "some", fraction=1).rows == 6
    assert update(f"{given}/images", root / "packed", workers=1).kept == 6
    assert run(["show", f"{given}/out"]) == 0
    assert (root / "far/out-sheet.png").is_file()


def test_an_interrupted_pack_names_the_folder_that_its_images_were_in(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(root / "far/images", classes=3, each=2)
    monkeypatch.chdir(root)
    interrupted(pack, "link/../images", root / "out", inputs=0, size=16, workers=1)
    with pytest.raises(IncompleteStoreError, match=rf"Continue with: pack {root}/far/images "):
        check_finished(root / "out.packing")


@pytest.mark.parametrize("way", ["plain", "percent"])
def test_a_file_url_is_the_same_folder_for_every_command(way: str, root: Path) -> None:
    folder = root / {"plain": "run", "percent": "run 1 %41é"}[way]
    url = folder.as_uri()
    assert ("%" in url) == (way == "percent")
    push(root / "mine", url)
    assert {path.name for path in root.iterdir()} == {"far", "link", "images", "mine", folder.name}
    assert store_bytes(folder) == store_bytes(root / "mine")
    pull(url, root / "back")
    assert store_bytes(root / "back") == store_bytes(root / "mine")
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
    assert len(MemmapDataset(url, cache=root / "cache")) == 4
    images = (root / "images").rename(root / f"images of {folder.name}")
    assert pack(images.as_uri(), root / "packed", size=32, workers=1).rows == 4
