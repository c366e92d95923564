"""The points of ``initial`` in ``[search]``, which are trained before any that the sampler proposes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.features.search.declaration.spec import Dimension, SearchSpec, identity
from orchestrator.jobfile.expand import JobTemplate, merged_settings
from orchestrator.jobfile.hyperparameters import DEFAULTS
from orchestrator.jobfile.model_edit_keys import flat
from orchestrator.keys.problems import Problems, place, quoted, suggestion


def read_initial(
    points: Sequence[Mapping[str, Any]], space: Sequence[Dimension], problems: Problems
) -> tuple[Mapping[str, Any], ...]:
    """The points as they are declared; a key that does not vary, or a value outside of the space,
    is a problem.
    """
    by_key = {dimension.key: dimension for dimension in space}
    for number, point in enumerate(points):
        for key, value in point.items():
            where = f"{_place_of(number)}.{place(key)}"
            if key not in by_key:
                problems.add(where, _unknown_key(key, by_key))
            elif fault := _fault(by_key[key], value):
                problems.add(where, f"{fault}, found {value!r:.60}")
    return tuple(dict(point) for point in points)


def initial_points(
    search: SearchSpec, template: JobTemplate, problems: Problems
) -> list[dict[str, Any]]:
    """The points with a value for every key of the space: one that is left out has the value of
    the unchanged job, and is a problem where that is not known or not in the space.
    """
    unchanged = unchanged_values(search.space, template) if search.initial else {}
    points: list[dict[str, Any]] = []
    identities: list[str] = []
    for number, declared in enumerate(search.initial):
        where = _place_of(number)
        point: dict[str, Any] = {}
        for dimension in search.space:
            key = dimension.key
            if key in declared:
                point[key] = _as_declared(dimension, declared[key])
            elif key not in unchanged:
                what = "has no value for it, and what the unchanged job has is not known here"
                problems.add(f"{where}.{place(key)}", f"the point {what}; add the value")
            elif fault := _fault(dimension, unchanged[key]):
                own = f"the unchanged job has {unchanged[key]!r:.60}"
                what = f"the point has no value for it, and {own}; {fault}"
                problems.add(f"{where}.{place(key)}", f"{what}: add a value, or widen the space")
            else:
                point[key] = _as_declared(dimension, unchanged[key])
        if identity(point) in identities:
            same = _place_of(identities.index(identity(point)))
            problems.add(where, f"is the same point as {same}; leave one of them out")
        points.append(point)
        identities.append(identity(point))
    return points


def unchanged_values(space: Sequence[Dimension], template: JobTemplate) -> dict[str, Any]:
    """What the job has without the search, by key of the space; without those that are not known
    before its robot is read.

    A key that multiplies what the robot has is 1 there.
    """
    # A problem is one of the job without a point.
    settings = merged_settings(template.layers, (), Problems())
    found: dict[str, Any] = {}
    for dimension in space:
        top, _, rest = dimension.key.partition(".")
        if top == "model":
            edit = flat(settings.get("model", {})).get(rest)
            value = _edit_as_value(edit, dimension)
        elif rest:
            defaults = DEFAULTS.get(top, {})
            value = _below(settings.get(top, {}), rest, defaults.get(rest))
        else:
            value = settings.get(top)
        if value is not None:
            found[dimension.key] = value
    return found


def _edit_as_value(edit: Any, dimension: Dimension) -> Any:
    """The value of the dimension that edits the robot as ``edit`` does; None where none does.

    :param edit: of the job file; None: the robot is as it is.
    """
    is_factor = isinstance(edit, str) and edit.startswith("*")
    if not dimension.multiply:
        return None if is_factor else edit
    if edit is None:
        return 1.0
    return float(edit[1:]) if is_factor else None


def _below(table: Any, rest: str, default: Any) -> Any:
    """What the table has there, dotted or nested."""
    if not isinstance(table, Mapping):
        return default
    if rest in table:
        return table[rest]
    first, _, further = rest.partition(".")
    return _below(table.get(first), further, default) if further else default


def _as_declared(dimension: Dimension, value: Any) -> Any:
    """``value`` as it is spelt among the choices: 100000 for 1e5; as it is where it is none."""
    if not dimension.choices or _fault(dimension, value):
        return value
    return dimension.choices[dimension.place_of(value)]


def _fault(dimension: Dimension, value: Any) -> str:
    """Why it is no value of the dimension; empty where it is one."""
    try:
        dimension.unit(value)
    except (ValueError, TypeError) as error:
        return str(error)
    return ""


def _unknown_key(key: str, known: Mapping[str, Dimension]) -> str:
    near = suggestion(key, known)
    if near:
        return f"is no key of search.space; did you mean {quoted(near)}?"
    quotes = "; dotted keys are in quotes" if any("." in one for one in known) else ""
    return f"is no key of search.space, which has {', '.join(map(quoted, known))}{quotes}"


def _place_of(number: int) -> str:
    return f"search.initial[{number}]"
