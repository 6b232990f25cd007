"""The kinds of IMAGES: a folder, a list on standard input, a table, tars, a zip, a URL.

Each kind has its own lister module (folders, lists, tables, archives, remote), which fills the same `Inputs`; `names` has the one
rule for classes and splits. Opens no image.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from packer.errors import OptionsError, ScanError, SourceError
from packer.inputs.folders import list_folder
from packer.inputs.names import check_lookalikes, first_folders, folders_of, note_folder_around, take_folders
from packer.inputs.samples import Inputs
from packer.option_names import Option
from packer.options import InputOptions
from packer.sources.roots import is_there
from packer.values import lasting_path
from reader.format.filesystem import absolute_path
from reader.format.urls import is_url

STDIN_NAMES = ("-", "-0")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
_EXPECTED = (
    "a folder of images, a .csv, .tsv, .jsonl or .parquet table, a tar, a zip, or - for a list of paths on standard"
    " input"
)

# the kinds of IMAGES that an option applies to
_BELONGS = {
    "root": ("list", "table"),
    "extension": ("list", "table"),
    "path_column": ("table",),
    "target_column": ("table", "tar"),
    "label_separator": ("table", "tar"),
}


def scan(
    images: Path | str | Sequence[Path | str],
    *,
    classes: tuple[str, ...] | None = None,
    options: InputOptions | None = None,
) -> dict[str, Inputs]:
    """List what IMAGES holds; several IMAGES must be tars.

    Args:
        classes: the class list to impose; an unknown class is an error.
        options: how to read lists and labels.

    Returns: split name ("" without splits) -> Inputs; all splits share one class list.

    Raises:
        ScanError: images does not exist, cannot be read, or holds no image.
        SourceError: a disk cannot be read, or went away meanwhile.
        OptionsError: an option belongs to another kind of IMAGES.
    """
    options = options or InputOptions()
    sources = [os.fspath(one) for one in ([images] if isinstance(images, str | os.PathLike) else images)]
    kind = _kind(sources)
    _check_options(options, kind, sources[0])
    # with boxes, the class list is that of the boxes
    imposed = classes if options.boxes is None else None
    splits = _listed(kind, sources, imposed, options)
    if kind != "table":
        if "" in splits:
            names = {*first_folders(splits[""])}.difference(classes or ())
            check_lookalikes(names, sources[0] if kind in ("folder", "url") else "")
            note_folder_around(splits[""])
        if options.boxes is None and not any("target_column" in one.labels for one in splits.values()):
            take_folders(splits, sources[0], imposed)
    if options.boxes is not None or options.masks is not None:
        from packer.inputs.label_files import give_boxes, give_masks

        if options.boxes is not None:
            give_boxes(splits, Path(options.boxes), classes)
        if options.masks is not None:
            give_masks(splits, Path(options.masks))
    for inputs in splits.values():
        inputs.images = tuple(map(lasting_path, sources))
        inputs.roots = _roots(inputs, options)
        if gone := next((root for root in inputs.roots if not is_there(root)), ""):
            other = f", or name by {Option('root')} the folder that they start in" if kind in _BELONGS["root"] else ""
            raise SourceError(f"{gone} is gone; inputs are there: mount or restore it, or correct the paths{other}")
        _record(inputs, options)
        if inputs.archives:
            from packer.inputs.archives import name_members

            name_members(inputs)
    return splits


def belongs(option: str, images: Sequence[str]) -> bool:
    """Whether an option of labels applies to this kind of IMAGES; raises ScanError if they cannot be packed."""
    return option not in _BELONGS or _kind([*images]) in _BELONGS[option]


def _check_options(options: InputOptions, kind: str, images: str) -> None:
    for name, kinds in _BELONGS.items():
        if getattr(options, name) is not None and kind not in kinds:
            raise OptionsError(
                f"{Option(name)} does not belong to {images}, which is a {kind}: it is for a {' or a '.join(kinds)}."
                " Leave it out."
            )


def _roots(inputs: Inputs, options: InputOptions) -> tuple[str, ...]:
    """Return the folders and archives that hold the inputs and their masks."""
    masks = [] if options.masks is None else [absolute_path(options.masks)]
    if inputs.url:
        return (*masks,)
    if inputs.archives:
        return (*(str(inputs.root / archive.path) for archive in inputs.archives), *masks)
    # a list's root may be above the one folder that its paths name
    folders = folders_of(inputs)
    common = inputs.root if "" in folders else inputs.root / os.path.commonpath(folders)
    return (*dict.fromkeys(map(absolute_path, (inputs.root, common))), *masks)


def _record(inputs: Inputs, options: InputOptions) -> None:
    """Record the options by which labels were read, beside columns and label files; never a path."""
    given = {
        "classes": options.classes is not None and bool(inputs.classes),
        "extension": options.extension,
        "label_separator": options.label_separator,
        "masks": options.masks is not None,
        "root": options.root is not None,
    }
    inputs.labels |= {name: value for name, value in given.items() if value}


def _listed(kind: str, sources: list[str], classes: tuple[str, ...] | None, options: InputOptions) -> dict[str, Inputs]:
    first = Path(sources[0])
    if kind == "folder":
        return list_folder(first)
    if kind in ("tar", "zip"):
        from packer.inputs.archives import read_tars, read_zip

        return read_zip(first) if kind == "zip" else read_tars([*map(Path, sources)], classes, options)
    if kind == "table":
        from packer.inputs.tables import read_table

        return {"": read_table(first, classes, options)}
    if kind == "url":
        from packer.inputs.remote import list_url

        return list_url(sources[0])
    from packer.inputs.lists import read_list

    return read_list(sources[0], options)


def _kind(sources: list[str]) -> str:
    """Return the kind of IMAGES: "list", "url", "folder", "table", "tar" or "zip"; raises ScanError for any other file."""
    if not sources:
        raise ScanError("images is an empty list, expected a folder, list, archive or URL of images, or several tars.")
    kinds = {source: _kind_of_one(source) for source in sources}
    if other := next((source for source, kind in kinds.items() if len(kinds) > 1 and kind != "tar"), ""):
        raise ScanError(
            f"{other} is no tar. Several IMAGES can be packed into one store only if all are tars; these are"
            f" {', '.join(sources)}. The last word is OUT."
        )
    return kinds[sources[0]]


def _kind_of_one(source: str) -> str:
    if source in STDIN_NAMES:
        return "list"
    if is_url(source):
        return "url"
    path = Path(source)
    # the scan of the folder names a missing path
    if not is_there(path) or not path.is_file():
        return "folder"
    if path.suffix.lower() in TABLE_SUFFIXES:
        return "table"
    from packer.inputs.archives import archive_kind

    kind = archive_kind(path)
    if kind == "gzip":
        raise ScanError(
            f"{path} is compressed, so its members cannot be read without unpacking it. Decompress it first."
        )
    if path.suffix.lower() == ".txt":
        raise ScanError(
            f"{path} is a text file. If lines are paths: pack - OUT < {path}; if path and label, write them to a .csv, with"
            " path,label as its first line."
        )
    if kind is None:
        raise ScanError(f"{path} is a file. Expected {_EXPECTED}; its parent folder can be packed.")
    return kind
