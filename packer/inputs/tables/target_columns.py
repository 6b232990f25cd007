"""Several target columns: each becomes a target of its own, the first with classes `targets`, the others extras.

Columns that all hold numbers stay one vector, as `labels` makes it. Knows no file but the store whose classes
are imposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from packer.errors import ScanError
from packer.inputs.class_lists import further_targets
from packer.inputs.tables.cells import is_number, parsed
from packer.inputs.tables.columns import Table
from packer.inputs.tables.labels import Labels, add_extras, as_multi_hot, label, regression, single, target_names, unfit
from packer.option_names import Option
from reader.format.manifest import FurtherTarget


def label_columns(
    table: Table, count: int, target_column: str | None, classes: tuple[str, ...] | None, source: str | None
) -> Labels:
    """Make tensors of a table's columns, as `labels.label` does; of several target columns, a target of each.

    Args:
        count: number of inputs.
        classes: the class list to impose, from source; where that is a store of several target columns, each takes its own.

    Raises:
        ScanError: there is no such column, it cannot be a target, or the store has not the same ones.
    """
    names, known = target_names(table, target_column), further_targets(source)
    if len(names) == 1 and names[0] in known:
        raise ScanError(
            f"{source} has {names[0]!r} as a further target, beside its first. Give the {Option('target_column')} that it was"
            " packed with."
        )
    if len(names) < 2 or (not known and all(_has_numbers(table, name) for name in names)):
        made_one = label(table, count, target_column=target_column, classes=classes)
        made_one.target_column = ",".join(names)
        return made_one
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ScanError(f"{Option('target_column')} names {twice!r} twice. Name each column once.")
    made = _each(table, names, known, classes, source)
    mine = [name for name in names if name not in known]
    first = next((name for name in mine if made[name].kind != "regression"), mine[0])
    labels = made.pop(first)
    labels.target_column = ",".join(names)
    for name, other in made.items():
        if reason := unfit(name, labels.extras):
            raise ScanError(f"the column {name!r} of {table.name} can be no further target: {reason}. Rename it.")
        labels.extras[name] = other.targets
        labels.notes += other.notes
        labels.further_targets[name] = FurtherTarget(other.kind, other.classes)
    add_extras(labels, table, names)
    return labels


def _has_numbers(table: Table, name: str) -> bool:
    """Whether a column is one of numbers, slips included: no lists, and not names alone."""
    cells = [parsed(cell) for cell in table.columns[name]]
    return any(map(is_number, cells)) and not any(isinstance(cell, list) for cell in cells)


def _each(
    table: Table,
    names: Sequence[str],
    known: dict[str, FurtherTarget],
    classes: tuple[str, ...] | None,
    source: str | None,
) -> dict[str, Labels]:
    """Read each column as it would be read alone, or as the store has it that the classes are from."""
    if known and (len(names) != len(known) + 1 or set(known) - set(names)):
        raise ScanError(
            f"{source} has the further targets {', '.join(sorted(known))} beside its first, {Option('target_column')} names"
            f" {', '.join(names)}. Give the same columns."
        )
    made: dict[str, Labels] = {}
    imposed = classes
    for name in names:
        if name in known:
            made[name] = _as_known(table, name, known[name])
            continue
        made[name] = single(table, name, imposed)
        if made[name].kind == "regression" or classes is None:
            continue
        if imposed is None:
            raise ScanError(
                f"{source} lists the classes of one of the columns {', '.join(names)}, and not of {name}."
                f" Give a store that was packed with the same {Option('target_column')}."
            )
        imposed = None
    return made


def _as_known(table: Table, name: str, known: FurtherTarget) -> Labels:
    if known.kind == "regression":
        cells = [parsed(cell) for cell in table.columns[name]]
        return regression(table, name, [cell if isinstance(cell, list) else [cell] for cell in cells])
    made = single(table, name, known.classes, accepts_integral_floats=True)
    if made.kind == "class" and known.kind == "multi-hot":
        return Labels(as_multi_hot(made.targets, len(known.classes)), "multi-hot", known.classes, notes=made.notes)
    if made.kind != known.kind:
        raise ScanError(f"the column {name!r} of {table.name} has {made.kind} targets, in the store {known.kind} ones.")
    return made
