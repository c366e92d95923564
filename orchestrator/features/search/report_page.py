"""The sections of a report that describe a search: its facts as sentences, tables and figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from orchestrator.analysis.statistics import INTERVALS
from orchestrator.core.text import count, listed
from orchestrator.features.search import report_figures as figures
from orchestrator.features.search.declaration.spec import sign_of
from orchestrator.features.search.estimates import BeliefFacts
from orchestrator.features.search.history import CommonReason, common_reasons
from orchestrator.features.search.point_text import point_text, value_text
from orchestrator.features.search.report_data import (
    AT_FIRST_RUNG,
    ReportedDimension,
    ReportedMean,
    ReportedTrial,
    SearchFacts,
)
from orchestrator.features.search.shown_trials import MOST_REPORTED, ArchiveElite
from orchestrator.features.search.trial_values import DRAWN
from orchestrator.ledger.lineage import env_steps_before
from orchestrator.report.document import Cell, Columns, Figure, Headline, Part, Section, Text, table
from orchestrator.report.number_format import DASH, number, one_line, percent, sentence

LINEAGE = (
    " “lineage” has its env_steps with those of all trainings of the policy that it started from, which count for "
    "each of its seeds."
)
MOST_SHOWN = 15
"""Rows of a table that are not folded."""
MOST_DRAWN = 400
"""Trials of a figure: a third of them the best, the others spread over the search."""
MOST_DIMENSIONS = 12
MOST_COLUMNS = 5
"""Dimensions, measures and previews up to which each dimension has a column of its own."""
MOST_REASONS = 12
FROM_NOTHING = "from nothing"
"""The name of the column of trials that were trained again; it is wide, so it is one of text."""
OF_MODEL = "estimate (model)"
"""The name of a column, which no objective can have."""
ESTIMATE = (
    f" “{OF_MODEL}” is what a model of the finished trials says of the point, ± standard deviation."
)
LUCKY = f" {DRAWN} Training it again with fresh seeds (`reevaluate` in [search]) shows what it is worth."


def headlines(facts: SearchFacts) -> list[Headline]:
    states = Counter(one["state"] for one in facts["trials"])
    words = {"waiting": "waiting at rungs", "training": "training or queued"}
    note = ", ".join(f"{states[name]:,} {words.get(name, name)}" for name in states)
    found = [Headline(label="trials", value=f"{len(facts['trials']):,}", note=note)]
    if facts["best"] and len(facts["objectives"]) == 1:
        best = _by_number(facts)[facts["best"][0]]
        value = _value(best, 0)
        note = f"{one_line(facts['objectives'][0], 40)} of trial {best['trial']}"
        if best["repeated"]:
            value = best["repeated"][0]
            note += ", trained again with fresh seeds"
        found.append(Headline(label="best", value=number(value), note=note))
    if facts["saved"] is not None:
        note = "of training all finished and waiting trials to the end"
        found.append(Headline(label="env_steps saved", value=percent(facts["saved"]), note=note))
    return found


def sections(facts: SearchFacts, images: Mapping[str, str]) -> list[Section]:
    """:param images: job → its picture as a ``data:`` URL."""
    if not facts["trials"]:
        return [
            Section(title="Search", parts=[Text(sentences=["The search has made no trial yet."])])
        ]
    if not facts["objectives"]:
        return _rungs(facts)
    return [
        _best(facts, images),
        *_space(facts),
        *_rungs(facts),
        *_archive(facts, images),
        *_front(facts),
        *_failures(facts),
        *_failed_seeds(facts),
    ]


def _by_number(facts: SearchFacts) -> dict[int, ReportedTrial]:
    return {one["trial"]: one for one in facts["trials"]}


def _value(trial: ReportedTrial, place: int) -> float | None:
    return trial["values"][place] if trial["values"] else None


def _by_first_value(facts: SearchFacts) -> list[int]:
    """The finished trials, the one with the best value in the search first."""
    sign = sign_of(facts["directions"][0])
    values = {one["trial"]: _value(one, 0) or 0.0 for one in facts["trials"]}
    return sorted(facts["best"], key=lambda trial: -sign * values[trial])


def _drawn_trials(
    facts: SearchFacts, trials: Sequence[ReportedTrial]
) -> tuple[list[ReportedTrial], str]:
    """The trials that a figure shows, and the sentence that says which they are."""
    if len(trials) <= MOST_DRAWN:
        return list(trials), ""
    ranked = dict.fromkeys([*facts["front"], *facts["best"]])
    rank = {number: place for place, number in enumerate(ranked)}
    known = [one for one in trials if one["trial"] in rank]
    best = sorted(known, key=lambda one: rank[one["trial"]])[: MOST_DRAWN // 3]
    taken = {one["trial"] for one in best}
    others = [one for one in trials if one["trial"] not in taken]
    step = len(others) / (MOST_DRAWN - len(best))
    spread = [others[int(place * step)] for place in range(MOST_DRAWN - len(best))]
    which = "the best, and others spread over the search" if best else "spread over all of them"
    shown = f" The figure shows {MOST_DRAWN} of {len(trials):,} trials: {which}."
    return sorted((*best, *spread), key=lambda one: one["trial"]), shown


def _finished_trials(facts: SearchFacts) -> list[ReportedTrial]:
    known = _by_number(facts)
    return [known[number] for number in sorted(facts["best"])]


# -- the best


def _best(facts: SearchFacts, images: Mapping[str, str]) -> Section:
    about = _about_search(facts)
    if not facts["best"]:
        return Section(title="Search", parts=[Text(sentences=[*about, "No trial has finished."])])
    known = _by_number(facts)
    rows = [known[trial] for trial in facts["ranked"][:MOST_REPORTED]]
    columns = _columns(facts, rows, images)
    text = [
        name
        for name in columns
        if name in ("trial", "preview", FROM_NOTHING, "point", "jobs") or name in _categories(facts)
    ]
    caption = _caption_of_best(facts, rows, has_lineages="lineage" in columns)
    best = table(rows, columns, caption=caption, text=text, shown=MOST_SHOWN)
    return Section(title="Search", parts=[Text(sentences=about), *_best_so_far(facts), best])


def _about_search(facts: SearchFacts) -> list[str]:
    """Sentences: how far it is, what it looks for, and how."""
    goals = [
        f"{one_line(name)} ({way})"
        for name, way in zip(facts["objectives"], facts["directions"], strict=True)
    ]
    over = (
        "The search is over."
        if facts["is_over"]
        else "The search has not ended; this is its state so far."
    )
    sampler = facts["auto_sampler"] or f"sampler: {facts['sampler']}"
    sentences = [over, f"Objective: {', '.join(goals)}.", sentence(sampler)]
    if facts["starts_from_reference"]:
        sentences.append(
            "Every trial started from the same policy, that of the unchanged job, which was trained first."
        )
    if facts["race"]:
        sentences.append(
            f"Trials that may be the best got further seeds, up to {facts['race']} with their own. A value is over all "
            "seeds of a trial, also those that were trained later. Trials are in the order of what their seeds say: "
            "the mean over them, shrunk towards that of all trials, the more the noisier it is, ± its error."
        )
    if facts["inherit"]:
        sentences.append(
            "Trials inherited the policy of an earlier one. At equal env_steps they cannot be compared with trials "
            "that were trained from nothing."
        )
    return [*sentences, *facts["reference_sentences"]]


def _caption_of_best(
    facts: SearchFacts, rows: Sequence[ReportedTrial], *, has_lineages: bool
) -> str:
    """:param rows: the trials of the table."""
    what = "The best trials"
    if facts["front"]:
        what = "The trials of the Pareto front"
        if any(one["repeated"] for one in rows):
            what += " of those that were trained again, and of that of the others"
    caption = f"{what}, with their values, points and jobs."
    if len(facts["best"]) > MOST_REPORTED:
        caption += f" Of {len(facts['best']):,} finished trials; report.json has all."
    if has_lineages:
        caption += LINEAGE
    if any(one["estimate"] for one in rows):
        caption += ESTIMATE
    if any(one["repeated"] for one in rows):
        caption += _caption_of_repeated(facts, rows)
    elif len(facts["objectives"]) == 1 and len(rows) > 1 and not facts["race"]:
        caption += LUCKY
    return caption


def _caption_of_repeated(facts: SearchFacts, rows: Sequence[ReportedTrial]) -> str:
    caption = (
        " “From nothing” is the value of another training with other seeds and without inheritance"
    )
    caption += "; trials that have one come first, "
    caption += (
        "as far as no other one surpasses them in it." if facts["front"] else "in the order of it."
    )
    if facts["reference"]:
        values = _with_means(facts["reference"], facts["reference_fresh_means"])
        caption += f" The unchanged job, trained in the same way, has {values}."
    means = [mean for one in rows for mean in one["fresh_means"] if mean]
    if any(mean["low"] is not None for mean in means):
        caption += (
            f" [ ] is the 95 % interval of the mean over the seeds of that training, by {INTERVALS}. The best of "
            "several such means had some luck, too."
        )
    return caption


def _best_so_far(facts: SearchFacts) -> list[Part]:
    drawn, which = _drawn_trials(facts, _finished_trials(facts))
    own = "A dot is a finished trial; the line is the best value so far."
    if facts["race"]:
        own = (
            "A dot is a finished trial with the value over all of its seeds, where the first of them had ended; the "
            "line is the best value by the seeds that had ended by then, and gets worse where a further one did worse."
        )
    axes = (
        "On the left against the env_steps of all trials that had reached a rung or ended by then, on the right "
        "against the time of the search."
    )
    figure = Figure(
        name="search-best-so-far",
        title="Best so far",
        caption=f"{own} {axes}{which}",
        draw=partial(figures.best_so_far, facts, drawn),
    )
    return [figure]


def _categories(facts: SearchFacts) -> list[str]:
    return [one_line(one["key"]) for one in facts["dimensions"] if one["choices"]]


def _columns(
    facts: SearchFacts, rows: Sequence[ReportedTrial], images: Mapping[str, str]
) -> Columns[ReportedTrial]:
    columns: Columns[ReportedTrial] = {"trial": lambda one: f"trial {one['trial']}"}
    if any(one["jobs"][0] in images for one in rows if one["jobs"]):
        columns["preview"] = lambda one: _picture(one, images)
    for place, name in enumerate(facts["objectives"]):
        columns[one_line(name)] = partial(_text_of_value, place)
    if any(one["repeated"] for one in rows):
        columns[FROM_NOTHING] = lambda one: _with_means(one["repeated"], one["fresh_means"])
    if any(one["estimate"] for one in rows):
        columns[OF_MODEL] = lambda one: _belief(one["estimate"])
    if facts["race"]:
        columns.setdefault("believed", lambda one: _belief(one["believed"]))
        columns.setdefault("seeds", lambda one: str(len(one["jobs"])))
    if len(facts["dimensions"]) + len(facts["axes"]) + ("preview" in columns) <= MOST_COLUMNS:
        for dimension in facts["dimensions"]:
            columns[one_line(dimension["key"])] = partial(_coordinate, dimension["key"])
    else:
        columns["point"] = lambda one: one_line(point_text(one["point"]))
    for place, axis in enumerate(facts["axes"]):
        columns.setdefault(one_line(axis["name"]), partial(_measure, place))
    columns.setdefault("env_steps", lambda one: f"{one['env_steps']:,}")  # it may be an objective
    if any(env_steps_before(one["env_steps"], one["lineage_env_steps"]) for one in rows):
        columns.setdefault("lineage", lambda one: number(one["lineage_env_steps"]))
    if facts["inherit"]:
        columns["parent"] = lambda one: DASH if one["parent"] is None else str(one["parent"])
    columns["jobs"] = _jobs
    return columns


def _jobs(one: ReportedTrial) -> str:
    shown = listed(one["jobs"], 1)
    if one["repeated_jobs"]:
        shown += f"; {FROM_NOTHING}: {listed(one['repeated_jobs'], 1)}"
    return one_line(shown)


def _picture(one: ReportedTrial, images: Mapping[str, str]) -> Cell | str:
    image = next((images[job] for job in one["jobs"] if job in images), None)
    return "" if image is None else Cell(text=f"picture of trial {one['trial']}", image=image)


def _with_means(values: Sequence[float] | None, means: Sequence[ReportedMean | None]) -> str:
    """Values of another training, each with the mean over its seeds, if this has an interval."""
    shown = []
    for value, mean in zip(values or (), means, strict=True):
        text = number(value)
        if mean is not None and mean["low"] is not None:
            limits = f"[{number(mean['low'])}, {number(mean['high'])}]"
            text += f" (mean {number(mean['value'])} {limits})"
        shown.append(text)
    return ", ".join(shown) or DASH


def _belief(belief: BeliefFacts | None) -> str:
    if belief is None:
        return DASH
    mean = number(belief["mean"])
    return mean if belief["error"] is None else f"{mean} ± {number(belief['error'])}"


def _text_of_value(place: int, one: ReportedTrial) -> str:
    return number(_value(one, place))


def _coordinate(key: str, one: ReportedTrial) -> str:
    return one_line(value_text(one["point"][key]), 60)


def _measure(place: int, one: ReportedTrial) -> str:
    return number(one["measures"][place] if one["measures"] else None)


# -- the space


def _space(facts: SearchFacts) -> list[Section]:
    finished = _finished_trials(facts)
    if len(finished) < 2 or not facts["dimensions"]:
        return []
    outcomes = list(facts["dimensions"][0]["effects"])
    ranked = sorted(facts["dimensions"], key=lambda one: -_largest(one))
    shown = ranked[:MOST_DIMENSIONS]
    which = ""
    if len(ranked) > len(shown):
        which = f" The figure shows the {len(shown)} dimensions with the largest effect of {len(ranked)}."
    drawn, some = _drawn_trials(facts, finished)
    parts: list[Part] = _effects(ranked, shown, outcomes, which, is_inherited=facts["inherit"])
    for place, name in enumerate(facts["objectives"]):
        suffix = f"-{place + 1}" if len(facts["objectives"]) > 1 else ""
        figure = Figure(
            name=f"search-slices{suffix}",
            title=f"Slices: {one_line(name, 60)}",
            caption="The value of finished trials against each dimension, the one with the largest effect first. The "
            "line joins the medians of groups of neighbours, or of each choice, over all finished trials."
            f"{which}{some}",
            draw=partial(figures.slices, shown, finished, drawn, name, place),
        )
        parts.append(figure)
    objective = facts["objectives"][0]
    direction = facts["directions"][0]
    best = _by_first_value(facts)
    parts.append(
        Figure(
            name="search-parallel-coordinates",
            title="Parallel coordinates",
            caption="A line is a finished trial: its value in each dimension, and its result at the right end."
            f"{which}{some}",
            draw=partial(figures.parallel, shown, drawn, best, objective, direction),
        )
    )
    return [Section(title="Space", parts=parts)]


def _largest(dimension: ReportedDimension) -> float:
    return max(one["share"] or 0.0 for one in dimension["effects"].values())


def _effects(
    ranked: Sequence[ReportedDimension],
    shown: Sequence[ReportedDimension],
    outcomes: Sequence[str],
    which: str,
    *,
    is_inherited: bool,
) -> list[Part]:
    """:param is_inherited: whether trials may begin with the policies of others."""
    known = [
        name
        for name in outcomes
        if any(one["effects"][name]["share"] is not None for one in ranked)
    ]
    if not known:
        early = "Too few trials have finished to estimate the effect of the dimensions."
        return [Text(sentences=[early], tone="dim")]
    figure = Figure(
        name="search-importance",
        title="Importance of the dimensions",
        caption="Main effect of each dimension: the share of the variance of ranks that lies between groups of trials "
        "with similar values, less what chance makes of it. Joint effects of several dimensions are not in it. "
        "A sampler does not try all combinations alike, so dimensions that it varied together share "
        f"their effect.{which}",
        draw=partial(figures.effects, shown, known),
    )
    columns: Columns[ReportedDimension] = {"dimension": lambda one: one_line(one["key"])}
    for name in known:
        columns[f"{one_line(name)}: share"] = partial(_share, name)
        columns[f"{one_line(name)}: correlation"] = partial(_correlation, name)
        columns[f"{one_line(name)}: trials"] = partial(_number_of_trials, name)
    caption = (
        "Share: epsilon squared of the ranks, over groups of neighbouring values or choices. Correlation: that of "
        "ranks (Spearman); negative where lower values of the dimension gave higher results."
    )
    if any(name.endswith(AT_FIRST_RUNG) for name in known):
        caption += " At the first rung all trials had been trained for equally many env_steps"
        caption += (
            ", besides those of the trials whose policies they began with." if is_inherited else "."
        )
    return [figure, table(ranked, columns, caption=caption, text=("dimension",), shown=MOST_SHOWN)]


def _share(outcome: str, dimension: ReportedDimension) -> str:
    return percent(dimension["effects"][outcome]["share"])


def _correlation(outcome: str, dimension: ReportedDimension) -> str:
    value = dimension["effects"][outcome]["correlation"]
    return DASH if value is None else f"{value:+.2f}".replace("-", "−")


def _number_of_trials(outcome: str, dimension: ReportedDimension) -> str:
    return f"{dimension['effects'][outcome]['n']:,}"


# -- rungs


def _rungs(facts: SearchFacts) -> list[Section]:
    reached = [one for one in facts["trials"] if one["rungs"]]
    if not reached or not facts["rungs"]:
        return []
    drawn, which = _drawn_trials(facts, reached)
    compared = facts["compared_by"]
    figure = Figure(
        name="search-rungs",
        title="Trials at rungs",
        caption=f"{'Return' if compared == 'return' else one_line(compared)} in training of each trial at each rung "
        "that it has reached; a line joins those of one trial. "
        f"Those that did not go on wait with their checkpoint, or wait for others to be compared with.{which}",
        draw=partial(figures.rungs, facts["rungs"], drawn, one_line(compared, 40)),
    )
    columns: Columns[_Rung] = {
        "rung": lambda rung: f"{rung.env_steps:,}",
        "reached": lambda rung: f"{len(rung.reached):,}",
        "no value": lambda rung: f"{len(rung.reached) - len(_values(rung.reached, rung.place)):,}",
        "went on": lambda rung: f"{len(rung.went_on):,}",
        "wait here": lambda rung: f"{len(rung.waiting):,}",
        f"median {one_line(compared)}": lambda rung: number(_middle(rung.reached, rung.place)),
        "median of those that went on": lambda rung: number(_middle(rung.went_on, rung.place)),
    }
    caption = (
        "Rungs, by their env_steps of each job, with the number of trials and what they are compared "
        "by of their training."
    )
    rows = [_rung(place, steps, reached) for place, steps in enumerate(facts["rungs"])]
    if all(len(_values(rung.reached, rung.place)) == len(rung.reached) for rung in rows):
        del columns["no value"]
    else:
        caption += " “no value”: those of which this is not known, as where no episode had ended."
    return [Section(title="Rungs", parts=[figure, table(rows, columns, caption=caption, text=())])]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rung:
    """A rung, and the trials that have come to it."""

    place: int
    env_steps: int
    reached: Sequence[ReportedTrial]
    went_on: Sequence[ReportedTrial]
    waiting: Sequence[ReportedTrial]


def _rung(place: int, env_steps: int, trials: Iterable[ReportedTrial]) -> _Rung:
    reached = [one for one in trials if len(one["rungs"]) > place]
    last_here = [one for one in reached if len(one["rungs"]) == place + 1]
    return _Rung(
        place=place,
        env_steps=env_steps,
        reached=reached,
        went_on=[one for one in reached if one["went_on"] > place],
        waiting=[one for one in last_here if one["state"] == "waiting"],
    )


def _values(trials: Sequence[ReportedTrial], rung: int) -> list[float]:
    """What those of ``trials`` are compared by that have a value at the rung."""
    return [
        value
        for one in trials
        if (value := one["rungs"][rung]) is not None and math.isfinite(value)
    ]


def _middle(trials: Sequence[ReportedTrial], rung: int) -> float | None:
    values = _values(trials, rung)
    return median(values) if values else None


# -- archive, front and failures


def _archive(facts: SearchFacts, images: Mapping[str, str]) -> list[Section]:
    if not facts["archive"]:
        return []
    cells = 1
    for axis in facts["axes"]:
        cells *= axis["cells"]
    names = [one_line(axis["name"], 40) for axis in facts["axes"]]
    figure = Figure(
        name="search-archive",
        title="Archive",
        caption=f"The best trial of each cell of measured {' and '.join(names[:2])}. The stronger the colour, the "
        f"better. {len(facts['archive']):,} of {cells:,} cells are filled. Numbers are those of the trials."
        + (" Over the other axes the best is shown." if len(names) > 2 else "")
        + _beyond_axes(facts),
        draw=partial(figures.archive_map, facts),
    )
    known = _by_number(facts)
    elites = facts["archive"][:MOST_REPORTED]
    columns: Columns[ArchiveElite] = {"trial": lambda one: f"trial {one['trial']}"}
    if any(job in images for one in elites for job in known[one["trial"]]["jobs"]):
        columns["preview"] = lambda one: _picture(known[one["trial"]], images)
    columns[one_line(facts["objectives"][0])] = lambda one: number(one["value"])
    for place, axis in enumerate(facts["axes"]):
        columns.setdefault(one_line(axis["name"]), partial(_range, facts, known, place))
    caption = "The elites with the highest values, and the cell that each is the best of."
    if facts["directions"][0] == "minimize":
        caption = caption.replace("highest", "lowest")
    body = table(elites, columns, caption=caption, text=("trial", "preview"), shown=MOST_SHOWN)
    return [Section(title="Archive", parts=[figure, body])]


def _beyond_axes(facts: SearchFacts) -> str:
    """A sentence on trials that lie beyond the ends of axes; empty where none does."""
    found = []
    for place, axis in enumerate(facts["axes"]):
        measured = [one["measures"][place] for one in facts["trials"] if one["measures"]]
        beyond = [one for one in measured if not axis["low"] <= one <= axis["high"]]
        if beyond:
            farthest = max(beyond, key=lambda one: max(axis["low"] - one, one - axis["high"]))
            trials = count(len(beyond), "trial")
            found.append(f"{one_line(axis['name'], 40)} of {trials}, as far as {number(farthest)}")
    if not found:
        return ""
    return f" Values beyond the ends of an axis are counted in its outermost cells: {'; '.join(found)}."


def _range(
    facts: SearchFacts, trials: Mapping[int, ReportedTrial], place: int, elite: ArchiveElite
) -> str:
    """The part of an axis that is the elite's cell; with its own measure where that lies beyond.

    :param trials: by number.
    """
    axis = facts["axes"][place]
    cell = elite["cell"][place]
    width = (axis["high"] - axis["low"]) / axis["cells"]
    shown = f"{number(axis['low'] + cell * width)} to {number(axis['low'] + (cell + 1) * width)}"
    measures = trials[elite["trial"]]["measures"]
    if measures and not axis["low"] <= measures[place] <= axis["high"]:
        shown += f" (measured: {number(measures[place])})"
    return shown


def _front(facts: SearchFacts) -> list[Section]:
    if not facts["front"]:
        return []
    drawn, which = _drawn_trials(facts, _finished_trials(facts))
    figure = Figure(
        name="search-pareto-front",
        title="Pareto front",
        caption=f"Finished trials by their objectives. No trial is as good as one of the front in every objective and "
        f"better in one; the front has {count(len(facts['front']), 'trial')}.{which}",
        draw=partial(figures.front, facts, drawn),
    )
    return [Section(title="Pareto front", parts=[figure])]


def _failures(facts: SearchFacts) -> list[Section]:
    failed = [one for one in facts["trials"] if one["state"] == "failed"]
    if not failed:
        return []
    reasons = common_reasons(one["why"] for one in failed)
    columns: Columns[CommonReason] = {
        "reason": lambda reason: one_line(failed[reason.place]["why"] or "unknown", 400),
        "trials": lambda reason: f"{reason.times:,}",
        "the first": lambda reason: str(failed[reason.place]["trial"]),
    }
    caption = (
        f"Why {count(len(failed), 'trial')} failed: the {MOST_REASONS} most frequent reasons at most. Reasons that "
        "differ only in numbers are one, and shown as of the first trial."
    )
    body = table(reasons[:MOST_REASONS], columns, caption=caption, text=("reason",))
    return [Section(title="Failed trials", parts=[body])]


def _failed_seeds(facts: SearchFacts) -> list[Section]:
    failed = [(one["trial"], why) for one in facts["trials"] for why in one["failed_seeds"]]
    if not failed:
        return []
    columns: Columns[tuple[int, str]] = {
        "trial": lambda one: f"trial {one[0]}",
        "reason": lambda one: one_line(one[1], 400),
    }
    caption = (
        f"{count(len(failed), 'further seed')} of trials with a value failed, and have no part in these values; the "
        f"first {MOST_REASONS} at most."
    )
    body = table(failed[:MOST_REASONS], columns, caption=caption, text=("trial", "reason"))
    return [Section(title="Failed further seeds", parts=[body])]
