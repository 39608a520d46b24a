"""The saved view of a study, in the form in which MLflow's own UI keeps shared views: an experiment tag with JSON inside.

The format is internal to MLflow (seen in 3.17 and 3.18); writing it is best effort and nothing depends on it."""

import hashlib
import json
from typing import Any

from runner.records.words import phase_word
from runner.tracking.view import RunView

TAG_PREFIX = "mlflow.sharedViewState."
KEPT = 30
NAME_SHOWN = 22
"""So many characters of a run's name MLflow's list shows; the column's width is not kept in a view."""
_TAG_LIMIT = 20000


def view_key(study: str) -> str:
    """Stable for a study, so that a repeated write replaces the view."""
    return hashlib.sha256(study.encode()).hexdigest()[:40]


def link(base: str, experiment: str, key: str, charts: bool = False) -> str:
    """The page of the UI that opens the view; `charts` shows the charts first."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"{base.rstrip('/')}/#/experiments/{experiment}/runs?viewStateShareKey={key}&workflowType=machine_learning{mode}"


def is_ours(tag: str) -> bool:
    """Is this the text of a view that a study wrote?"""
    return '"name": "Study ' in tag or '"name": "SIMULATED study ' in tag


def view_tag(
    study: str, phases: tuple[str, ...], factors: tuple[str, ...], runs: list[RunView], now_ms: int, simulated: bool = False
) -> str:
    """JSON text of the view: arms of the study, best effect first; parallel coordinates, latency against throughput, bars, curves."""
    names = list(dict.fromkeys(metric.name for run in runs if run.kind == "arm" for metric in run.metrics))
    shown = [factor for factor in factors if len({run.params.get(factor) for run in runs if run.kind == "arm"}) > 1]
    title = f"SIMULATED study {study}" if simulated else f"Study {study}"
    cut = any(len(run.name) > NAME_SHOWN for run in runs if run.kind == "arm")
    state = {**_table(study, names, shown, cut), **_charts(names, shown, phases, simulated)}
    text = json.dumps({"name": title, "createdAt": now_ms, "updatedAt": now_ms, "state": json.dumps(state)})
    if len(text) > _TAG_LIMIT:
        state = {**_table(study, names[:6], shown[:6], cut), **_charts(names[:6], shown[:6], phases, simulated)}
        text = json.dumps({"name": title, "createdAt": now_ms, "updatedAt": now_ms, "state": json.dumps(state)})
    return text


def _table(study: str, names: list[str], factors: list[str], names_are_cut: bool) -> dict[str, Any]:
    """Where the list cuts the arms' names off, their levels come first: they say which arm it is."""
    nights = [name for name in names if "night_" in name]
    effects = nights or [name for name in names if name.endswith("effect_pct")]
    values = [name for name in names if name.endswith(("tpot_p50_ms", "output_tok_s")) and not name.startswith("curve/")]
    levels = [f"params.`{factor}`" for factor in factors]
    columns = [
        "params.`engine_version`",
        *(levels if names_are_cut else ()),
        "tags.`verdict`",
        "tags.`status`",
        *[f"metrics.`{name}`" for name in effects[:6]],
        "tags.`evidence`",
    ]
    columns += [] if names_are_cut else levels
    columns += [f"metrics.`{name}`" for name in values[:6]]
    return {
        "searchFilter": f"tags.study = '{study}' AND tags.kind = 'arm'",
        "orderByKey": "metrics.`night_pct`" if nights else "metrics.`effect_pct`",
        "orderByAsc": bool(nights),
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": {column: 110 if column.startswith("tags.") else 145 if "engine_version" in column else 130 for column in columns},
        "runsHiddenMode": "SHOW_ALL",
        "runsPinned": [],
        "runsHidden": [],
        "runsExpanded": {},
        "groupBy": None,
    }


def _charts(names: list[str], factors: list[str], phases: tuple[str, ...], simulated: bool) -> dict[str, Any]:
    charts: list[dict[str, Any]] = []
    titles = {"overview": "Overview", "bars": "Every metric", "curves": "Curves over concurrency"}
    sections = [_section(key, f"SIMULATED: {title}" if simulated else title) for key, title in titles.items()]
    metrics = [name for name in ("night_pct", "effect_pct", *[f"{phase_word(phase)}/effect_pct" for phase in phases]) if name in names]
    if factors and metrics:
        charts.append(_chart("parallel", "PARALLEL", "overview", selectedParams=factors, selectedMetrics=metrics[:1], showAllRuns=True))
    if metrics:
        charts.append(_bar("effect", "overview", metrics[0]))
    pairs = [
        (f"{phase_word(phase)}/ttft_p50_ms", f"{phase_word(phase)}/tpot_p50_ms", f"{phase_word(phase)}/output_tok_s") for phase in phases
    ]
    decoding = [pair for pair in pairs if not pair[0].startswith("prefill")]
    for ttft, tpot, throughput in decoding or pairs:
        latency = tpot if tpot in names else ttft
        if latency in names and throughput in names:
            charts.append(
                _chart(
                    f"scatter-{latency}",
                    "SCATTER",
                    "overview",
                    xaxis={"key": throughput, "type": "METRIC"},
                    yaxis={"key": latency, "type": "METRIC"},
                    runsCountToCompare=100,
                )
            )
    charts += [_bar(f"bar-{name}", "bars", name) for name in names if not name.startswith("curve/") and name not in metrics[:1]]
    for name in names:
        if name.startswith("curve/"):
            charts.append(
                _chart(
                    f"line-{name}",
                    "LINE",
                    "curves",
                    metricKey=name,
                    selectedMetricKeys=[name],
                    xAxisKey="step",
                    xAxisScaleType="linear",
                    scaleType="linear",
                    lineSmoothness=0,
                    useGlobalXaxisKey=False,
                    useGlobalLineSmoothing=False,
                    runsCountToCompare=100,
                )
            )
    return {"compareRunCharts": charts, "compareRunSections": sections, "isAccordionReordered": True}


def _section(uuid: str, name: str) -> dict[str, Any]:
    return {"uuid": uuid, "name": name, "display": True, "isReordered": True, "deleted": False, "isGenerated": False}


def _chart(uuid: str, kind: str, section: str, **fields: Any) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "type": kind,
        "metricSectionId": section,
        "deleted": False,
        "isGenerated": False,
        "runsCountToCompare": 100,
        **fields,
    }


def _bar(uuid: str, section: str, name: str) -> dict[str, Any]:
    return _chart(uuid, "BAR", section, metricKey=name, dataAccessKey=name, selectedMetricKeys=[name])
