"""A plausible study, made up from a seed and marked simulated: plan, launches, decision and a folder on disk.

The numbers stand for nothing; the shapes (statuses, verdicts, missing values, long names) are what tests and eyes need."""

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

from runner.analysis.night_decision import as_night
from runner.records.decision import ArmResult, CellResult, Decision, Effect, HypothesisResult, Recommendation
from runner.records.files import write_json
from runner.records.journal import Journal
from runner.records.night import NightReport, Quantity, Shift
from runner.records.paths import RootPaths, StudyPaths, safe_name
from runner.records.plan import Arm, Cell, Estimate, Hypothesis, Plan
from runner.records.schema import (
    ClientFitness,
    Command,
    Counts,
    EngineIdentity,
    Evidence,
    Failure,
    LaunchRecord,
    PhaseRecord,
    Telemetry,
)

START = 1_790_000_000.0
PHASES = {"decode_c1": 1, "decode_c16": 16, "decode_c64": 64, "prefill_c4": 4}
PRIMARY = {"decode_c1": "tpot_p50_ms", "decode_c16": "tpot_p50_ms", "decode_c64": "tpot_p50_ms", "prefill_c4": "ttft_p50_ms"}
BASE = {"tpot_p50_ms": 13.6, "ttft_p50_ms": 182.0, "output_tok_s": 71.0}
# arm -> (levels, true effect in percent by phase kind, status)
CAST: tuple[tuple[dict[str, str], dict[str, float], str], ...] = (
    ({"mscclpp": "off", "fusion": "off", "overlap": "on"}, {}, "BASELINE"),
    ({"mscclpp": "on", "fusion": "off", "overlap": "on", "mscclpp_max_bytes": "1MB"}, {"decode": 6.2, "prefill": 0.4}, "MEASURED"),
    ({"mscclpp": "off", "fusion": "on", "overlap": "on"}, {"decode": -4.1, "prefill": -1.0}, "MEASURED"),
    ({"mscclpp": "off", "fusion": "off", "overlap": "off"}, {"decode": 3.0, "prefill": -9.0}, "MEASURED"),
    ({"mscclpp": "off", "fusion": "auto", "overlap": "on"}, {"decode": 0.1, "prefill": 0.0}, "MEASURED"),
    ({"mscclpp": "on", "fusion": "on", "overlap": "on", "mscclpp_max_bytes": "1MB"}, {"decode": 1.2, "prefill": 2.0}, "UNRESOLVED"),
    ({"mscclpp": "on", "fusion": "off", "overlap": "off", "mscclpp_max_bytes": "1MB"}, {}, "FAILED"),
    ({"mscclpp": "on", "fusion": "auto", "overlap": "on", "mscclpp_max_bytes": "1MB"}, {}, "INERT"),
    ({"mscclpp": "off", "fusion": "on", "overlap": "off"}, {}, "BROKEN"),
    ({"mscclpp": "off", "fusion": "auto", "overlap": "off"}, {}, "INVALID"),
)


@dataclass(frozen=True)
class Synthetic:
    plan: Plan
    launches: list[LaunchRecord]
    decision: Decision


def arm_name(levels: dict[str, str], baseline: dict[str, str]) -> str:
    changed = [f"{factor}={level}" for factor, level in levels.items() if baseline.get(factor) != level]
    return ",".join(changed) or "baseline"


def make(
    blocks: int = 4, arms: int | None = None, seed: int = 3, study: str = "overlap_grid-synthetic", simulated: bool = True
) -> Synthetic:
    """`arms` above the cast adds measured arms with a made-up size factor."""
    draw = random.Random(seed)
    cast = list(CAST)
    for index in range(len(cast), arms or 0):
        cast.append(
            ({"mscclpp": "off", "fusion": "off", "overlap": "on", "chunk": str(256 * index)}, {"decode": draw.gauss(0, 3)}, "MEASURED")
        )
    cast = cast[: arms or len(cast)]
    names = [arm_name(levels, CAST[0][0]) for levels, _, _ in cast]
    plan = _plan(cast, names, blocks, draw, study, simulated)
    launches = []
    clock = START
    for block, row in enumerate(plan.blocks):
        for position, name in enumerate(row):
            levels, effects, status = cast[names.index(name)]
            record = _launch(plan, name, levels, effects, status, block, position, clock, draw)
            clock = record.ended_at + 4
            launches.append(record)
    return Synthetic(plan, launches, _decision(plan, cast, names, launches, blocks))


def write(root: Path, synthetic: Synthetic, finished: bool = True, requests: bool = False) -> StudyPaths:
    """The study's folder as execution leaves it: plan, journal, decision and launch folders."""
    study = RootPaths(root).study(synthetic.plan.study)
    write_json(study.plan, synthetic.plan.model_dump(mode="json", by_alias=True))
    study.journal.parent.mkdir(parents=True, exist_ok=True)
    lines = [("study_started", {"study": synthetic.plan.study})]
    lines += [("launch_finished", {"launch": record.model_dump(mode="json", by_alias=True)}) for record in synthetic.launches]
    if finished:
        write_json(study.decision, synthetic.decision.model_dump(mode="json", by_alias=True))
        lines += [("decision", {}), ("study_finished", {})]
    with open(study.journal, "a", encoding="utf-8") as file:  # one fsync a line would take minutes for big studies
        for number, (kind, fields) in enumerate(lines):
            file.write(json.dumps({"schema": 1, "seq": number, "t": START + number, "kind": kind, **fields}) + "\n")
    Journal(study.journal).close()
    for record in synthetic.launches:
        paths = study.launch(record.launch)
        paths.folder.mkdir(parents=True, exist_ok=True)
        paths.server_log.write_text(_log(record, study), encoding="utf-8")
        write_json(paths.record, record.model_dump(mode="json", by_alias=True))
        if requests:
            _requests(study, record)
    return study


def _plan(
    cast: list[tuple[dict[str, str], dict[str, float], str]],
    names: list[str],
    blocks: int,
    draw: random.Random,
    study: str,
    simulated: bool,
) -> Plan:
    cells = [Cell(levels=levels, status="ARM", arm=name) for (levels, _, _), name in zip(cast, names, strict=True)]
    cells += [
        Cell(
            levels={"mscclpp": "on", "fusion": fusion, "overlap": "on", "mscclpp_max_bytes": "3MB"},
            status="REJECTED",
            reason="mscclpp_max_bytes: 3MB is not a power of two",
            refused_at="rule",
        )
        for fusion in ("off", "on", "auto")
    ]
    cells.append(
        Cell(
            levels={"mscclpp": "off", "fusion": "trtllm", "overlap": "on"},
            status="REJECTED",
            reason="the engine refuses the arguments",
            refused_at="resolve",
            sentence="ValueError: flashinfer allreduce fusion needs sm90 or sm100, got <sm120>",
        )
    )
    cells.append(
        Cell(
            levels={"mscclpp": "on", "fusion": "off", "overlap": "on", "mscclpp_max_bytes": "2MB"},
            status="DUPLICATE",
            arm=names[min(1, len(names) - 1)],
            reason="no measured batch falls between 1MB and 2MB",
        )
    )
    rows = []
    for _ in range(blocks):
        row = list(names)
        draw.shuffle(row)
        rows.append(tuple(row))
    return Plan(
        study=study,
        experiment="overlap_grid",
        question="Which communication flags help GLM-5-NVFP4 decode on a PCIe node?",
        engine_kind="simulated" if simulated else "sglang",
        engine_version="0.5.21",
        simulated=simulated,
        node="rtxpro6000_x8",
        model="glm5_nvfp4",
        baseline="baseline",
        baseline_levels=dict(CAST[0][0]),
        factors=("mscclpp", "fusion", "overlap", "mscclpp_max_bytes"),
        raw_cells=len(cells),
        cells=tuple(cells),
        arms=tuple(
            Arm(name=name, levels=levels, options={"tp-size": 8}, patches=("skip_barrier",) if levels.get("fusion") == "on" else ())
            for (levels, _, _), name in zip(cast, names, strict=True)
        ),
        phases=tuple(PHASES),
        hypotheses=tuple(Hypothesis(arm=name, phase=phase, metric=metric) for name in names[1:] for phase, metric in PRIMARY.items()),
        blocks=tuple(rows),
        estimate=Estimate(estimate=52.0, low=41.0, high=77.0, wall_minutes=60, launches=blocks * len(names)),
        seed=7,
        identity={"code_revision": "4e1a9c2", "driver": "580.65.06", "engine_build": "b1946ac9"},
    )


def _launch(
    plan: Plan,
    name: str,
    levels: dict[str, str],
    effects: dict[str, float],
    status: str,
    block: int,
    position: int,
    start: float,
    draw: random.Random,
) -> LaunchRecord:
    launch = f"b{block}-p{position}-{name}-a1"
    failed = status == "FAILED" or (status == "MEASURED" and draw.random() < 0.02)
    evidence = [Evidence(factor="mscclpp", level=levels["mscclpp"], grade="resolved", proof="enable_mscclpp == true", source="server_info")]
    if levels["mscclpp"] == "on":
        proof = "Created MSCCL++ communicator: group=tp"
        evidence = [Evidence(factor="mscclpp", level="on", grade="observed", proof=proof, source="log", line=6)]
    if status == "INERT":
        proof = "flashinfer allreduce fusion disabled: <unsupported capability 120>"
        evidence.append(Evidence(factor="fusion", level=levels["fusion"], grade="contradicted", proof=proof, source="log", line=7))
    shift = draw.gauss(0, 0.004)
    phases = []
    for phase, concurrency in () if failed else PHASES.items():
        phases.append(_phase(plan, phase, concurrency, effects, shift, status, start, draw, launch))
    return LaunchRecord(
        study=plan.study,
        launch=launch,
        arm=name,
        levels=levels,
        block=block,
        position=position,
        node=plan.node,
        host="node-a",
        boot_id="b0",
        engine=EngineIdentity(
            kind=plan.engine_kind, version=plan.engine_version, build="b1946ac9", simulated=plan.simulated, packages={"torch": "2.14.1"}
        ),
        command=Command(
            argv=("/opt/engine/bin/python", "-m", "sglang.launch_server", "--model-path", "/models/glm5", "--tp-size", "8"),
            env={"NCCL_P2P_LEVEL": "SYS", "MSCCLPP_CACHE": "/home/someone/cache"},
            patches={"skip_barrier": "9f86d081884c7d65"} if levels["fusion"] == "on" else {},
        ),
        started_at=start,
        ended_at=start + 95 + draw.random() * 10,
        stages={"start": 3.0, "weights": 31.0, "graphs": 12.0, "measure": 40.0, "stop": 2.0},
        gpu_seconds=90.0 * 8,
        outcome="failed" if failed else "ok",
        failure=Failure(
            kind="nccl_timeout",
            confidence=0.9,
            line="Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12) & rank 3",
            cause="a collective never finished",
            remedy="check P2P with action=doctor",
            retry="once",
        )
        if failed
        else None,
        evidence=tuple(evidence),
        phases=tuple(phases),
        artifacts={},
    )


def _phase(
    plan: Plan,
    phase: str,
    concurrency: int,
    effects: dict[str, float],
    shift: float,
    status: str,
    start: float,
    draw: random.Random,
    launch: str,
) -> PhaseRecord:
    effect = effects.get("prefill" if phase.startswith("prefill") else "decode", 0.0)
    noise = math.exp(shift + draw.gauss(0, 0.012 if status == "UNRESOLVED" else 0.002))
    slow = noise / (1 + effect / 100)
    growth = 1 + 0.12 * math.log2(concurrency)
    metrics = {
        "tpot_p50_ms": BASE["tpot_p50_ms"] * growth * slow,
        "tpot_p99_ms": BASE["tpot_p50_ms"] * growth * slow * 1.3,
        "ttft_p50_ms": BASE["ttft_p50_ms"] * growth * slow,
        "ttft_p99_ms": BASE["ttft_p50_ms"] * growth * slow * 1.7,
        "output_tok_s": concurrency * 1000 / (BASE["tpot_p50_ms"] * growth * slow),
    }
    invalid = status == "INVALID"
    return PhaseRecord(
        phase=phase,
        valid=not invalid,
        invalid_reasons=("dispatch lag 41 ms is above 20 ms",) if invalid else (),
        steadiness="steady",
        concurrency=concurrency,
        started_at=start + 50,
        window_s=10,
        metrics=metrics,
        counts=Counts(sent=200, completed=200),
        client=ClientFitness(dispatch_lag_p99_ms=0.9, cpu_share=0.1),
        telemetry=Telemetry(
            sm_clock_mhz_p50=2400 + draw.randint(-15, 15),
            power_w_mean=412 + draw.random() * 20,
            temperature_c_max=66,
            memory_used_gb_max=88,
        ),
        artifacts={"requests": f"launches/{safe_name(launch)}/{phase}.requests.parquet"},
    )


def _log(record: LaunchRecord, study: StudyPaths) -> str:
    lines = [f"[2026-09-21 02:{index:02d}:00 TP{index % 8}] Load weight begin. avail mem=94.1 GB" for index in range(5)]
    lines.append(
        "[2026-09-21 02:06:01 TP0] Created MSCCL++ communicator: group=tp" if record.levels.get("mscclpp") == "on" else "no mscclpp"
    )
    lines.append("[2026-09-21 02:06:02 TP0] flashinfer allreduce fusion disabled: <unsupported capability 120>")
    lines.append(f"[2026-09-21 02:06:03 TP0] cache at {study.folder.resolve()}/cache, model at /models/glm5/model.safetensors")
    if record.failure:
        lines.append(record.failure.line)
    return "\n".join(lines) + "\n"


def _requests(study: StudyPaths, record: LaunchRecord) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(abs(hash(record.launch)) % 2**32)
    for phase in record.phases:
        ttft = phase.metrics["ttft_p50_ms"] / 1000 * generator.lognormal(0, 0.2, 200)
        tpot = phase.metrics["tpot_p50_ms"] / 1000 * generator.lognormal(0, 0.05, 200)
        sent = np.arange(200) * 0.05
        table = pa.table(
            {
                "counted": [True] * 200,
                "sent_s": sent,
                "chunk_s": [[s + t, s + t + 127 * p] for s, t, p in zip(sent, ttft, tpot, strict=True)],
                "tokens": [[1, 128]] * 200,
            }
        )
        pq.write_table(table, study.folder / phase.artifacts["requests"])


def _decision(
    plan: Plan, cast: list[tuple[dict[str, str], dict[str, float], str]], names: list[str], launches: list[LaunchRecord], blocks: int
) -> Decision:
    results = []
    for (levels, effects, status), name in zip(cast, names, strict=True):
        own = [record for record in launches if record.arm == name]
        evidence = own[0].evidence if own else ()
        served = [record for record in own if record.outcome == "ok"]
        values = {
            phase: {
                metric: math.exp(sum(math.log(found.metrics[metric]) for r in served if (found := r.phase(phase))) / len(served))
                for metric in ("tpot_p50_ms", "tpot_p99_ms", "ttft_p50_ms", "ttft_p99_ms", "output_tok_s")
            }
            for phase in (PHASES if served else ())
        }
        hypotheses: tuple[HypothesisResult, ...] = ()
        verdict = None
        if status in ("MEASURED", "UNRESOLVED"):
            hypotheses = tuple(_hypothesis(phase, metric, effects, status, len(served), blocks) for phase, metric in PRIMARY.items())
            seen = {item.verdict for item in hypotheses}
            better, worse = "BETTER" in seen, "WORSE" in seen
            verdict = (
                "MIXED" if better and worse else "BETTER" if better else "WORSE" if worse else "SAME" if seen == {"SAME"} else "UNRESOLVED"
            )
        results.append(
            ArmResult(
                name=name,
                levels=levels,
                status="MEASURED" if status == "UNRESOLVED" else status,  # type: ignore[arg-type]
                verdict=verdict,  # type: ignore[arg-type]
                launches=len(served),
                failed_launches=len(own) - len(served),
                start_success=len(served) / len(own) if own else None,
                evidence=evidence,
                hypotheses=hypotheses,
                values=values if status in ("BASELINE", "MEASURED", "UNRESOLVED") else {},
                same_as="mscclpp=on,mscclpp_max_bytes=1MB" if status == "INERT" else None,
                failure_class="nccl_timeout" if status == "FAILED" else None,
                reason={
                    "BROKEN": "greedy tokens differ from the baseline's at prompt 2, token 5",
                    "INVALID": "dispatch lag above the limit in every launch",
                    "INERT": "fusion is contradicted; without it the arm equals another",
                    "FAILED": "NCCL time-out at start in every launch",
                }.get(status, ""),
                attributed=levels.get("mscclpp") == "on",
            )
        )
    return Decision(
        study=plan.study,
        question=plan.question,
        engine={"kind": plan.engine_kind, "version": plan.engine_version, "simulated": plan.simulated},
        node=plan.node,
        model=plan.model,
        baseline="baseline",
        gpu_minutes=sum(record.gpu_seconds for record in launches) / 60,
        recommendation=Recommendation(
            arm="mscclpp=on,mscclpp_max_bytes=1MB",
            confirmed=True,
            sentence="Turn mscclpp on with 1MB: TPOT falls by 6.2 % in decode (confirmed in 2 fresh blocks); prefill stays the same.",
            command=("python", "-m", "sglang.launch_server", "--model-path", "/models/glm5", "--tp-size", "8", "--enable-mscclpp"),
            env={"SGLANG_MSCCLPP_MAX_BYTES": "1MB"},
            proved=("mscclpp=on",),
            not_proved=("overlap=on",),
            not_testable=("fusion=trtllm: needs sm90 or sm100",),
            next_experiment="python -m runner +experiment=mscclpp_size",
        ),
        arms=tuple(results),
        cells=tuple(
            CellResult(levels=c.levels, status=c.status, arm=c.arm, reason=c.reason, refused_at=c.refused_at, sentence=c.sentence)
            for c in plan.cells
        ),
        effects=(
            Effect(factors=("mscclpp",), levels=("on",), phase="decode_c16", metric="tpot_p50_ms", effect_pct=5.1, low_pct=4.0, high_pct=6.2),
            Effect(
                factors=("mscclpp", "fusion"), levels=("on", "on"), phase="decode_c16", metric="tpot_p50_ms",
                effect_pct=-1.0, low_pct=-2.4, high_pct=0.5, exploratory=True,
            ),
        ),
        noise={"tpot_p50_ms": {"launch_pct": 0.42, "launches": 12, "source": "this study"}, "ttft_p50_ms": {"launch_pct": 0.6, "launches": 12}},
        method={"name": "log ratio to the baseline of the block", "alpha": 0.05, "looks": 3},
        warnings=("one launch of the baseline was repeated",),
    )  # fmt: skip


def _hypothesis(phase: str, metric: str, effects: dict[str, float], status: str, launches: int, blocks: int) -> HypothesisResult:
    effect = effects.get("prefill" if phase.startswith("prefill") else "decode", 0.0)
    half = 4.0 if status == "UNRESOLVED" else 0.8
    margin = 5.0 if metric.startswith("ttft") else 1.0
    low, high = effect - half, effect + half
    inside = -margin < low and high < margin
    verdict = "SAME" if inside else "BETTER" if low > 0 else "WORSE" if high < 0 else "UNRESOLVED"
    return HypothesisResult(
        phase=phase,
        metric=metric,
        verdict=verdict,  # type: ignore[arg-type]
        effect_pct=effect,
        low_pct=low,
        high_pct=high,
        launches=launches,
        baseline_launches=blocks,
        margin_pct=margin,
        could_see_pct=half * 1.4,
    )


def as_nightly(synthetic: Synthetic, outcome: str = "regression", changed: bool = True) -> Synthetic:
    """The same launches as a night: `fusion=on` has become slower at one stream; what was measured had too few launches for a verdict."""
    few = {"status": "INVALID", "verdict": None, "reason": "no primary hypothesis has 3 valid launches"}
    arms = tuple(arm.model_copy(update=few) if arm.status == "MEASURED" else arm for arm in synthetic.decision.arms)
    phase, metric = "decode_c1", "tpot_p50_ms"
    measured = [arm.name for arm in synthetic.decision.arms if arm.values]
    moved = {"fusion=on": -5.0}
    shifts = tuple(
        Shift(
            quantity=Quantity(arm=name, phase=phase, metric=metric),
            change_pct=moved.get(name, 0.1),
            low_pct=moved.get(name, 0.1) - 1,
            high_pct=moved.get(name, 0.1) + 1,
            p_value=0.001 if name in moved else 0.5,
            nights=1,
            launches=2,
            verdict="REGRESSION" if name in moved else "quiet",
        )
        for name in measured
    )
    rows = tuple(
        {
            "study": f"night-{index}",
            "at": START + 86400 * index,
            "outcome": "regression" if index == 7 else "quiet",
            "accepted": index == 0,
            "means": {f"{name}|{phase}|{metric}": 13.0 + 0.01 * index for name in measured},
        }
        for index in range(8)
    )
    night = NightReport(
        study=synthetic.plan.study,
        node=synthetic.plan.node,
        simulated=synthetic.plan.simulated,
        at=START,
        outcome=outcome,
        sentence=f"{outcome}: driver 580 -> 590. fusion=on, c1, TPOT p50: -5.0 %",
        changed={"driver": ("580", "590")} if changed else {},
        shifts=() if outcome in ("learning", "busy", "unfinished") else shifts,
        suspects=("fusion=on",) if outcome == "regression" else (),
        relaunched=("baseline", "fusion=on") if outcome == "regression" else (),
        first_look="regression" if outcome == "regression" else "",
        baseline_nights=tuple(f"night-{index}" for index in range(7)),
        history=rows,
    )
    return Synthetic(synthetic.plan, synthetic.launches, as_night(synthetic.decision.model_copy(update={"arms": arms}), night))
