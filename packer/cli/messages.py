"""Reports, manifests and sources in words, as lines of text. Never prints."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from packer.text import counted, spans
from reader.format.filesystem import size_text
from reader.format.manifest import FORMAT_VERSION
from reader.format.shown import shown
from reader.format.splits import ROLES

if TYPE_CHECKING:
    from packer.operations.info import SourceStatistics
    from packer.operations.requantize import RequantizeReport
    from packer.operations.transfer import CopyReport
    from packer.report import PackReport
    from reader.format.manifest import Manifest

_REASONS_SHOWN = 8
_NAME_CHARACTERS = 200


def summary(report: PackReport) -> str:
    """Summarize a pack."""
    if not report.inputs:
        return (
            f"part {report.part} has no images, as there are fewer than parts: pack seal makes the store of the others"
        )
    lines = store_lines(report) if report.is_in_place else []
    if report.resumed_from == report.inputs:
        done = f"all images were packed before; sealed in {report.seconds:.1f} s"
        done = done if report.seconds else "already finished; nothing was done"
        return "\n".join([*lines, done, *(reject_lines(report) if report.seconds else []), *_part_lines(report)])
    already = f" ({report.resumed_from:,} of them before)" if report.resumed_from else ""
    lines.append(
        f"packed {report.rows:,} of {report.inputs:,} images{already} in {report.seconds:.1f} s:"
        f" {report.images_per_second:,.0f} images/s, from {size_text(report.source_bytes)}"
    )
    if report.kept or report.gone:
        decoded = report.rows - report.kept
        gone = f", {report.gone:,} gone" if report.gone else ""
        lines.append(f"rows: {report.kept:,} kept, {decoded:,} decoded{gone}")
    if report.changed_paths:
        more = report.changed_count - len(report.changed_paths)
        named = ", ".join(map(shown, report.changed_paths)) + (f" and {more} more" if more else "")
        lines.append(
            f"{named} changed since the pack was interrupted: all images from the block of the first one on were packed again"
        )
    if report.ignored:
        lines.append(f"{report.ignored:,} other file{'s were' if report.ignored > 1 else ' was'} left alone")
    return "\n".join([*lines, *reject_lines(report), *_part_lines(report)])


def store_lines(report: PackReport) -> list[str]:
    """Describe each store in a line."""
    lines = []
    for part in list(report.splits.values()) or [report]:
        labels = [counted(part.classes, "class", "classes")] if part.classes else []
        labels += [f"{part.target_kind} targets"] if part.target_kind != "class" and not part.classes else []
        labels += ["masks"] if part.has_masks else []
        labeled = ", ".join(labels) or "no labels"
        shape = f"{'up to ' if part.has_own_sizes else ''}{part.size[0]} x {part.size[1]} x {part.channels}"
        lines.append(f"{part.out}: {rows(part.rows)} of {shape}, {labeled}, {size_text(part.store_bytes)}")
    return lines


def rows(count: int) -> str:
    """Count rows in words."""
    return counted(count, "row", "rows")


def copied(report: PackReport) -> str:
    """Summarize a store of copied rows, and the speed."""
    speed = f"{size_text(int(report.store_bytes / report.seconds))}/s"
    done = f"{rows(report.rows)} copied in {report.seconds:.1f} s, {speed}"
    return "\n".join([*store_lines(report), done, *reject_lines(report)])


def sealed(report: PackReport) -> str:
    """Summarize a store that was made from its parts."""
    return "\n".join([*store_lines(report), f"sealed in {report.seconds:.1f} s", *reject_lines(report)])


def transferred(report: CopyReport, what: str) -> str:
    """Summarize a push or a pull, and its speed."""
    speed = f"{size_text(int(report.copied_bytes / report.seconds))}/s"
    present = f", {size_text(report.kept_bytes)} were there" if report.kept_bytes else ""
    return f"{what}: {size_text(report.copied_bytes)} copied in {report.seconds:.1f} s ({speed}){present}"


def reject_lines(report: PackReport) -> list[str]:
    """Sum up the rejects by reason."""
    where = "rejected.jsonl" if not report.splits else "each rejected.jsonl"
    where += "" if report.is_in_place else " of the new store, beside OUT"
    where += " of the sealed store" if report.part else ""
    return _reason_lines("rejected", report.rejected, where, report.reasons)


def _reason_lines(what: str, total: int, where: str, reasons: Mapping[str, int]) -> list[str]:
    if not total:
        return []
    lines = [f"{what} {total:,} (see {where}):"]
    for reason, count in list(reasons.items())[:_REASONS_SHOWN]:
        lines.append(f"  {count:>6,} x {shown(reason)}")
    if len(reasons) > _REASONS_SHOWN:
        lines.append(f"         and {counted(len(reasons) - _REASONS_SHOWN, 'more reason', 'more reasons')}")
    return lines


def rejects_sentence(rejected: int, inputs: int, allowed: str) -> str:
    """Return the sentence on too many rejects."""
    were = "was" if rejected == 1 else "were"
    return f"{rejected} of {counted(inputs, 'input', 'inputs')} {were} rejected, more than --max-rejects {allowed}."


def too_many_rejects(report: PackReport, allowed: str) -> str:
    """Explain too many rejects: whether the store is usable, and whether OUT holds it or the one before."""
    sentence = rejects_sentence(report.rejected, report.inputs, allowed)
    if report.part:
        return f"{sentence} The part is complete: pack seal makes the store of it and the others."
    stores = list(report.splits.values()) or [report]
    held, each = " and ".join(store.out for store in stores), "s" if len(stores) == 1 else ""
    old, new = ("store", "the new one") if each else ("stores", "the new ones")
    if report.is_in_place:
        return f"{sentence} {held} hold{each} the new {old}, complete but for the rejected, and usable."
    return (
        f"{sentence} {held} still hold{each} the old {old}, usable as before. To replace {'it' if each else 'them'} by {new},"
        f" decoding nothing again: the same command with --max-rejects {max(store.rejected for store in stores)}"
    )


def next_step(report: PackReport, images: str, has_boxes: bool) -> str:
    """Return the lines of code that train from a store, or validate if its name or that of IMAGES contains val or test."""
    # with splits, the training split comes first
    store = next(iter(report.splits.values()), report)
    is_train = min(_roles(store.out) or _roles(images), default=ROLES["train"]) == ROLES["train"]
    what, name, shuffle = ("train from", "train", ", shuffle=True") if is_train else ("validate on", "val", "")
    lines = [
        f"to {what} it:",
        "from pixpack import MemmapDataset, MemmapLoader, transforms",
        f"{name} = MemmapDataset({json.dumps(store.out, ensure_ascii=False)})",
    ]
    if has_boxes:
        flip = "transforms.RandomHorizontalFlip(), " if is_train else ""
        lines += [
            f"recipe = transforms.Compose([{flip}transforms.ToDetection()])",
            f"loader = MemmapLoader({name}, batch_size=4{shuffle}, transform=recipe)",
            "for images, targets in loader:",
            f"    {'loss = sum(model(images, targets).values())' if is_train else 'outputs = model(images)'}",
        ]
        return "\n  ".join(lines)
    # rows of several sizes are cropped to fit one batch
    if store.has_own_sizes:
        transform = f", transform=transforms.{'RandomResizedCrop' if is_train else 'ResizeCenterCrop'}(224)"
    else:
        transform = ", transform=transforms.RandomHorizontalFlip()" if is_train else ""
    lines.append(f"normalize = transforms.Normalize.from_manifest({name}.manifest)")
    loader = f"loader = MemmapLoader({name}, batch_size=256{shuffle}{transform}"
    if not store.classes and store.target_kind == "class" and not store.has_masks:
        # a tuple would need labels
        lines += [f"{loader}, as_tuple=False)", "for batch in loader:", "    outputs = model(normalize(batch.images))"]
    else:
        targets = 'targets["masks"].long()' if store.has_masks else "targets"
        outputs = "model(normalize(images))"
        use = f"loss = criterion({outputs}, {targets})" if is_train else f"outputs = {outputs}"
        lines += [f"{loader})", "for images, targets in loader:", f"    {use}"]
    return "\n  ".join(lines)


def _roles(path: str) -> list[int]:
    """Return the roles (train, val, test) in the last name of a path."""
    words = re.findall("[a-z]+", os.path.basename(os.path.normpath(path)).lower())
    return [ROLES[word] for word in words if word in ROLES]


def _part_lines(report: PackReport) -> list[str]:
    return [f"this is part {report.part}; when all parts are packed, pack seal makes the store"] if report.part else []


def requantized(report: RequantizeReport) -> str:
    """Summarize a requantization."""
    already = f" ({report.resumed_from:,} of them before)" if report.resumed_from else ""
    share = report.bytes_after / report.bytes_before if report.bytes_before else 1
    lines = [
        f"{report.out}: {report.requantized:,} of {report.inputs:,} images requantized{already} in {report.seconds:.1f} s",
        f"{'before':10}{size_text(report.bytes_before)}",
        f"{'after':10}{size_text(report.bytes_after)}, {share:.0%} of it",
    ]
    where = "requantized.jsonl"
    lines += _reason_lines("kept as they are", report.kept, where, report.kept_reasons)
    return "\n".join([*lines, *_reason_lines("rejected", report.rejected, where, report.reasons)])


def manifest_lines(out: str, m: Manifest) -> dict[str, str]:
    """Describe a store by its manifest."""
    size_bytes = sum(entry.size_bytes for entry in m.files.values())
    options = ", ".join(
        f"{shown(k)} {shown(str(v), most=_NAME_CHARACTERS)}"
        for k, v in m.options.items()
        if v not in (None, False) and k != "size"
    )
    found = {
        name: ", ".join(f"{shown(what)} {shown(str(value))}" for what, value in d.items() if value)
        for name, d in m.decoders.items()
    }
    decoders = f",\n{'':12}".join(f"{shown(name)} ({versions})" for name, versions in found.items())
    width = f" x {m.target_count}" if m.target_count else ""
    loss = f"PSNR {m.jpeg.psnr:.1f} dB, by JPEGs of quality {m.jpeg.quality}" if m.jpeg else ""
    return {
        "store": f"{out} (format {FORMAT_VERSION[0]}.{FORMAT_VERSION[1]}, {m.digest[:19]})",
        "rows": f"{m.rows:,} of {m.shape_text},"
        f" {size_text(size_bytes)}{f', pixels compressed from {size_text(m.pixel_bytes)}' if m.jpeg else ''}",
        **({"loss": loss} if loss else {}),
        "inputs": f"{m.inputs:,}, {m.rejected:,} rejected",
        "targets": f"{m.target_kind}{width}, {counted(len(m.classes), 'class', 'classes')}{_some(m.classes)}",
        "extras": ", ".join([*m.extras, *(["masks"] if m.has_own_masks else [])]) or "none",
        **({"masks": f"values {spans(m.mask_values)}"} if m.mask_values else {}),
        "mean": " ".join(f"{value:.4f}" for value in m.mean),
        "std": " ".join(f"{value:.4f}" for value in m.std),
        "options": options,
        "decoders": decoders,
    }


def source_lines(manifest: Manifest, sources: SourceStatistics) -> dict[str, str]:
    """Describe the rows per class, and the sizes of their sources."""
    lines = {}
    if counts := sources.class_counts:
        least, most = (choose(range(len(counts)), key=counts.__getitem__) for choose in (min, max))
        first, last = (shown(manifest.classes[number], most=_NAME_CHARACTERS) for number in (least, most))
        spread = f"{counts[least]:,} ({first}) to {counts[most]:,} ({last})"
        lines["a class"] = f"{spread} rows" if counts[least] != counts[most] else f"{counts[least]:,} rows"
        lines["a class"] += f"; {sources.unlabelled:,} rows without a label" if sources.unlabelled else ""
        if not counts[most]:  # the classes are those of the boxes
            lines["a class"] = "no row has a label"
    if sources.sizes:
        common = ", ".join(f"{width} x {height} ({count:,})" for width, height, count in sources.sizes)
        more = f"; {sources.distinct_sizes:,} sizes" if sources.distinct_sizes > len(sources.sizes) else ""
        lines["sources"] = f"{size_text(sources.source_bytes)}; {common}{more}"
    return lines


def _some(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    some = ", ".join(shown(name, most=_NAME_CHARACTERS) for name in names[:5])
    return f" ({some}{', ...' if len(names) > 5 else ''})"
