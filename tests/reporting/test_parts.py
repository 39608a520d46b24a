"""Parts of the report with an answer of their own."""

import gzip
from pathlib import Path

import pytest
import zstandard

from runner.loadgen.profile import profile_of
from runner.records.files import write_json
from runner.records.paths import RootPaths
from runner.records.schema import Evidence
from runner.reporting.budget import budget_section
from runner.reporting.decision_schema import as_text, decision_schema
from runner.reporting.excerpts import excerpt_of, failure_excerpt
from runner.reporting.plots import pareto
from runner.reporting.privacy import Placeholders
from runner.reporting.samples import read_samples, request_samples
from runner.reporting.sections import prompts_sent, provenance, telemetry_rows
from runner.reporting.time_table import time_section
from tests.reporting.synthetic import make, write


def test_pareto_front_keeps_what_nothing_beats() -> None:
    points = {"slow": (10.0, 5.0), "fast": (20.0, 4.0), "more": (30.0, 6.0), "same": (20.0, 4.0), "worst": (5.0, 9.0)}
    assert pareto(points) == ["fast", "same", "more"]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_excerpts_read_compressed_logs(tmp_path: Path, suffix: str) -> None:
    synthetic = make(blocks=1)
    study = write(tmp_path, synthetic)
    record = next(record for record in synthetic.launches if record.levels["mscclpp"] == "on" and record.outcome == "ok")
    log = study.launch(record.launch).server_log
    data = log.read_bytes()
    if suffix:
        log.unlink()
        packed = gzip.compress(data) if suffix == ".gz" else zstandard.compress(data)
        log.with_name(log.name + suffix).write_bytes(packed)
    found = excerpt_of(study, [record], record.evidence[0])
    assert found is not None
    assert [(number, hit) for number, _, hit in found.lines] == [(3, False), (4, False), (5, False), (6, True), (7, False), (8, False)]
    assert "Created MSCCL++" in found.lines[3][1]


def test_evidence_of_another_launch_is_not_shown_as_this_ones(tmp_path: Path) -> None:
    synthetic = make(blocks=1)
    study = write(tmp_path, synthetic)
    other = Evidence(factor="mscclpp", level="on", grade="observed", proof="another line", source="log", line=6)
    assert excerpt_of(study, synthetic.launches, other) is None


def test_failure_excerpt_finds_the_line_or_shows_the_end(tmp_path: Path) -> None:
    synthetic = make(blocks=1)
    study = write(tmp_path, synthetic)
    failed = next(record for record in synthetic.launches if record.failure)
    found = failure_excerpt(study, failed)
    assert found is not None and [text for _, text, hit in found.lines if hit] == [failed.failure.line]  # type: ignore[union-attr]
    study.launch(failed.launch).server_log.write_text("\n".join(f"line {n}" for n in range(1, 30)) + "\n")
    found = failure_excerpt(study, failed)
    assert found is not None and found.lines[-1][0] == 29 and not any(hit for _, _, hit in found.lines)


def test_request_tables_give_ttft_and_tpot_of_counted_requests(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "x.parquet"
    table = {
        "counted": [True, False, True, True],
        "sent_s": [1.0, 1.0, 2.0, None],
        "chunk_s": [[1.5, 1.6, 2.5], [9.0], [2.25], []],
        "tokens": [[1, 2, 11], [1], [1], []],
    }
    pq.write_table(pa.table(table), path)
    samples = read_samples(path)
    assert samples["ttft"] == pytest.approx([500.0, 250.0])
    assert samples["tpot"] == pytest.approx([100.0])  # 1.0 s for 10 tokens after the first chunk; one token has no TPOT


def test_damaged_request_table_falls_back_to_launch_medians(tmp_path: Path) -> None:
    synthetic = make(blocks=2, arms=2)
    study = write(tmp_path, synthetic)
    for record in synthetic.launches:
        for phase in record.phases:
            (study.folder / phase.artifacts["requests"]).write_bytes(b"PAR1 this is no table PAR1")
    samples, per_request = request_samples(study, synthetic.launches, "decode_c1", ["baseline"])
    assert not per_request and len(samples["tpot"]["baseline"]) == 2


def test_placeholders_hide_paths_and_leave_the_rest(tmp_path: Path) -> None:
    synthetic = make(blocks=1, arms=2)
    study = write(tmp_path, synthetic)
    hide = Placeholders(study, synthetic.launches).hide
    assert hide(f"{study.folder}/launches/a/server.log") == "$STUDY/launches/a/server.log"
    assert hide("/opt/engine/bin/python -m x --model-path /models/glm5 --port 1") == "$ENGINE_PYTHON -m x --model-path $MODEL --port 1"
    assert hide("CACHE=/srv/big/cache end") == "CACHE=$PATH_TO/cache end"
    for kept in ("</details></td>", "http://127.0.0.1:5000/a/b", "tok/s a/b", "1/2/3", "/health", "POST /v1/completions"):
        assert hide(kept) == kept
    once = hide("see /var/log/messages/x")
    assert hide(once) == once


def test_schema_names_every_key_that_scripts_may_read() -> None:
    schema = decision_schema()
    contract = {"schema", "study", "engine", "node", "baseline", "gpu_minutes", "recommendation", "arms", "cells"}
    assert contract <= set(schema["properties"])
    hypothesis = {"phase", "metric", "verdict", "effect_pct", "low_pct", "high_pct", "launches"}
    assert hypothesis <= set(schema["$defs"]["HypothesisResult"]["properties"])
    assert schema["version"] == 1
    assert "status: BASELINE | MEASURED | FAILED" in as_text(schema)


def test_budget_needs_the_configuration(tmp_path: Path) -> None:
    synthetic = make(blocks=1, arms=2)
    study = write(tmp_path, synthetic)
    assert budget_section(study, synthetic.decision, synthetic.launches) is None


def test_budget_sets_the_bound_against_the_largest_effect(tmp_path: Path) -> None:
    from runner.records.files import write_json

    synthetic = make(blocks=1)
    study = write(tmp_path, synthetic)
    node = {"name": "n", "gpus": 8, "gpu_model": "x", "capability": 120, "memory_gb": 96, "link": "pcie", "link_gb_s": 63}
    node["all_reduce"] = {"nccl": {"alpha_us": 10, "gb_s": 40, "source": "made up for this test"}}
    model = {"name": "m", "hidden_size": 6144, "num_layers": 78}
    phases = {"decode_c1": {"kind": "decode", "concurrency": 1}, "prefill_c4": {"kind": "prefill"}}
    write_json(study.config, {"node": node, "model": model, "workload": {"phases": phases}})
    section = budget_section(study, synthetic.decision, synthetic.launches)
    assert section is not None
    assert {row["tokens"] for row in section.rows} == {"1", "128", "1024"}
    assert "made up for this test" in section.note
    (finding,) = section.findings
    share = 100 * 156 * (10 + 2 * 7 / 8 * 12288 / 40e3) / 1000 / synthetic.decision.arms[0].values["decode_c1"]["tpot_p50_ms"]
    assert f"at most {share:.1f} % of TPOT" in finding
    assert "+6.2 % (mscclpp=on,mscclpp_max_bytes=1MB)" in finding
    faster = synthetic.decision.arms[1].hypotheses[0].model_copy(update={"metric": "ttft_p50_ms", "effect_pct": 50.0})
    first, second, *rest = synthetic.decision.arms
    other = second.model_copy(update={"hypotheses": (faster, *second.hypotheses)})
    also = synthetic.decision.model_copy(update={"arms": (first, other, *rest)})
    again = budget_section(study, also, synthetic.launches)
    assert again is not None and again.findings == (finding,), "a bound on TPOT is set against effects on TPOT"
    assert RootPaths(tmp_path).studies.is_dir()


def test_one_gpu_communicates_nothing(tmp_path: Path) -> None:
    from runner.records.files import write_json

    synthetic = make(blocks=1, arms=2)
    study = write(tmp_path, synthetic)
    node = {"name": "n", "gpus": 1, "gpu_model": "x", "capability": 90, "memory_gb": 141, "link": "nvlink", "link_gb_s": 450}
    write_json(study.config, {"node": node, "model": {"name": "m", "hidden_size": 2048, "num_layers": 24}, "workload": {"phases": {}}})
    section = budget_section(study, synthetic.decision, synthetic.launches)
    assert section is not None and section.rows == ()
    assert section.findings == ("One GPU serves: no all-reduce is made, so no communication flag can matter here.",)


def test_budget_takes_the_nodes_own_probe_for_real_studies_alone(tmp_path: Path) -> None:
    from runner.records.files import write_json

    node = {"name": "n", "gpus": 8, "gpu_model": "x", "capability": 120, "memory_gb": 96, "link": "pcie", "link_gb_s": 63}
    config = {"node": node, "model": {"name": "m", "hidden_size": 6144, "num_layers": 78}, "workload": {"phases": {}}}
    fit = {"alpha_us": 7.0, "gb_s": 30.0, "source": "measured here"}
    probe = {"node": "n", "host": "h", "at": 1.0, "backend": "nccl", "ranks": 8, "python": "p", "torch": "2"}
    probe["algorithms"] = {"nccl": {"points": [{"bytes": 4096, "us": [8.0]}], "fit": fit}}
    for simulated in (False, True):
        synthetic = make(blocks=1, simulated=simulated)
        study = write(tmp_path / str(simulated), synthetic)
        write_json(study.config, {**config, "engine": {"options": {"tp-size": 4}}})
        write_json(study.probe, {"schema": 1, **probe})
        section = budget_section(study, synthetic.decision, synthetic.launches)
        assert section is not None
        assert "4 ranks" in section.note
        assert ("measured here" in section.note) is not simulated, "a real node's probe says nothing about the simulated one"


def test_the_report_says_what_was_sent_and_what_the_links_carried(tmp_path: Path) -> None:
    study = make()
    first = study.launches[0]
    phase = first.phases[0]
    text = phase.model_copy(
        update={"phase": "chat", "dataset": "text:ab", "telemetry": phase.telemetry.model_copy(update={"nvlink_rx_gb_s": 12.3})}
    )
    launches = [first.model_copy(update={"phases": (phase, text)})]
    said = prompts_sent(launches)
    assert f"{phase.phase}: random token ids, which say little of MoE routing" in said
    assert "chat: text:ab" in said
    rows = {row["arm"]: row for row in telemetry_rows(study.decision, launches)}
    assert "NVLink 12.30" in rows[first.arm]["links"]
    assert dict(provenance(study.plan, study.decision, launches, write(tmp_path, study)).rows)["prompts"] == said


def test_a_profile_answers_whether_it_is_communication(tmp_path: Path) -> None:
    synthetic = make()
    study = write(tmp_path, synthetic)
    assert time_section(study, synthetic.decision, synthetic.launches) is None
    first, second = synthetic.launches[0], next(record for record in synthetic.launches if record.arm != synthetic.launches[0].arm)
    names = ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "nvjet_tst_64x8", "unheard_of")
    durations = ((600, 300, 100), (100, 300, 600))
    launches = []
    for record, times in zip((first, second), durations, strict=True):
        events = [
            {"ph": "X", "cat": "kernel", "name": n, "ts": at * 1000, "dur": t} for at, (n, t) in enumerate(zip(names, times, strict=True))
        ]
        place = f"{record.launch}.profile.json"
        write_json(study.folder / place, profile_of(events, 2).model_dump(mode="json"))
        launches.append(record.model_copy(update={"artifacts": {**record.artifacts, "profile": place}}))
    section = time_section(study, synthetic.decision, launches)
    assert section is not None
    rows = {row["arm"]: row for row in section.rows}
    assert rows[first.arm]["communication"] == "0.300 (60%)"
    assert rows[second.arm]["unnamed"] == "0.300 (60%)"
    assert f"{first.arm}: of the time in which something ran, 60% went to communication, 30% to matrix products" in section.findings[0]
    assert any(text.startswith(f"{second.arm}: 60% of the time is in kernels that no rule names") for text in section.findings)
    assert section.kernels[0]["kind"] == "communication"
    (study.folder / f"{second.launch}.profile.json").write_text("{")
    left = time_section(study, synthetic.decision, launches)
    assert left is not None
    assert [row["arm"] for row in left.rows] == [first.arm]
