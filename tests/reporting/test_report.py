"""The HTML report: everything is in it, nothing is loaded, no path of this machine."""

import re
import xml.dom.minidom
from html.parser import HTMLParser
from pathlib import Path

import pytest

from runner.records.files import write_json
from runner.records.paths import StudyPaths
from runner.reporting.html import render, write_report
from runner.reporting.plots import Plot
from tests.reporting.synthetic import Synthetic, as_nightly, make, write

NO_PLOTS: dict[str, list[Plot]] = {name: [] for name in ("forest", "trade_off", "boxes", "distributions", "time", "clocks")}
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Collects text, attributes that load something, and checks that tags close in order (SVG included)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [str(given[name]) for name in ("src", "href", "xlink:href") if name in given and not str(given[name]).startswith("#")]
        if "id" in given:
            self.ids.append(str(given["id"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def synthetic() -> Synthetic:
    return make()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, synthetic: Synthetic) -> StudyPaths:
    paths = write(tmp_path_factory.mktemp("mlruns"), synthetic, requests=True)
    write_json(paths.config, {"overrides": ["+experiment=overlap_grid", "protocol.max_blocks=4"]})
    write_report(paths, synthetic.decision, synthetic.plan, synthetic.launches)
    return paths


@pytest.fixture(scope="module")
def page(study: StudyPaths) -> Page:
    return Page(study.report.read_text())


def test_page_is_well_formed_and_loads_nothing(page: Page, study: StudyPaths) -> None:
    assert page.open == []
    assert page.loads == []
    assert "@import" not in study.report.read_text() and "url(http" not in study.report.read_text()
    assert study.report.stat().st_size < 3_000_000


def test_ids_are_unique_over_all_plots(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))


def test_every_arm_and_every_outcome_is_there(page: Page, synthetic: Synthetic) -> None:
    for arm in synthetic.decision.arms:
        assert arm.name in page.text
        for item in arm.hypotheses:
            assert f"{item.effect_pct:+.1f}" in page.text or item.effect_pct == 0
    for word in ("BETTER", "WORSE", "MIXED", "SAME", "UNRESOLVED", "FAILED", "INERT", "BROKEN", "INVALID", "REJECTED", "DUPLICATE"):
        assert word in page.text


def test_question_answer_and_reasons_are_there(page: Page, synthetic: Synthetic) -> None:
    assert synthetic.decision.question in page.text
    assert synthetic.decision.recommendation.sentence in page.text
    assert "needs sm90 or sm100, got <sm120>" in page.text  # the engine's own sentence, escaped
    assert "The study could have seen: decode_c1 5.6 %" in page.text


def test_evidence_opens_to_its_log_line(study: StudyPaths) -> None:
    html = study.report.read_text()
    assert re.search(r'<span class="hit">\s+6  [^<]*Created MSCCL\+\+ communicator: group=tp', html)
    assert re.search(r'<span class="hit">[^<]*Watchdog caught collective operation timeout', html)


def test_simulated_is_said_in_title_banner_and_every_table(study: StudyPaths) -> None:
    html = study.report.read_text()
    assert "<title>SIMULATED" in html
    assert 'class="banner">SIMULATED' in html
    captions = re.findall(r"<(?:caption|figcaption)>(.*?)</", html, flags=re.DOTALL)
    assert len(captions) > 15
    assert all(caption.startswith("SIMULATED") for caption in captions)
    assert len(re.findall("<table", html)) == len(re.findall("<caption>", html))


def test_a_real_study_never_says_simulated(tmp_path: Path) -> None:
    real = make(blocks=1, arms=2, simulated=False)
    paths = write(tmp_path, real)
    assert "SIMULATED" not in render(paths, real.decision, real.plan, real.launches, NO_PLOTS)


def test_no_path_of_this_machine(study: StudyPaths) -> None:
    html = study.report.read_text()
    for hidden in (str(study.folder), str(Path.home()), "/opt/engine", "/models/glm5", "/home/someone", "/tmp/"):
        assert hidden not in html, hidden
    assert "$ENGINE_PYTHON -m sglang.launch_server" in html
    assert "$STUDY/cache" in html or "cache at $STUDY" in html


def test_commands_repeat_the_study_as_it_was_typed(page: Page) -> None:
    assert "python -m runner +experiment=overlap_grid protocol.max_blocks=4" in page.text


def test_plots_are_files_too_and_say_simulated(study: StudyPaths) -> None:
    files = sorted(study.plots.glob("*.svg"))
    assert {"boxes.svg", "trade-off.svg", "clocks.svg", "forest-decode_c16-tpot_p50_ms.svg", "distribution-decode_c1.svg"} <= {
        p.name for p in files
    }
    for path in files:
        text = path.read_text()
        xml.dom.minidom.parseString(text)
        assert "SIMULATED" in text
        assert not re.search(r"#0102[01]\w", text), "a stand-in colour was left"
        assert "var(--" not in text


def test_page_colours_are_variables_that_every_palette_defines(study: StudyPaths) -> None:
    html = study.report.read_text()
    assert not re.search(r"#0102[01]\w", html)
    used = set(re.findall(r"var\((--\w+)\)", html))
    palettes = re.findall(r":root \{(.*?)\}", html, flags=re.DOTALL)
    assert len(palettes) == 3
    for palette in palettes:
        assert used <= set(re.findall(r"(--\w+):", palette))


def test_black_ink_is_not_hard_wired(study: StudyPaths) -> None:
    svg = "".join(re.findall(r"<svg.*?</svg>", study.report.read_text(), flags=re.DOTALL))
    assert not re.findall(r"(?:fill|stroke): ?(#000000|black|#ffffff|white)", svg)


def test_a_night_has_its_own_section_with_the_history_and_what_changed_first(tmp_path: Path, synthetic: Synthetic) -> None:
    night = as_nightly(synthetic)
    paths = write(tmp_path, night)
    html = write_report(paths, night.decision, night.plan, night.launches).read_text()
    page = Page(html)
    assert page.open == [] and len(page.ids) == len(set(page.ids))
    tonight = html[html.index('<section id="night">') : html.index('<section id="effects">')]
    assert tonight.index("driver") < tonight.index("fusion=on")
    assert "-5.0\n[-6.0, -4.0]" in tonight and tonight.count("<svg") == 2
    assert (paths.plots / "nights-decode_c1-tpot_p50_ms.svg").is_file()
    assert "no primary hypothesis" not in html


def test_topology_is_shown_as_it_was_noted(tmp_path: Path, synthetic: Synthetic) -> None:
    paths = write(tmp_path, synthetic)
    assert "Topology and node" not in render(paths, synthetic.decision, synthetic.plan, synthetic.launches, NO_PLOTS)
    paths.topology.write_text("ok    topology: 8 GPUs; 28 x SYS")
    assert "8 GPUs; 28 x SYS" in render(paths, synthetic.decision, synthetic.plan, synthetic.launches, NO_PLOTS)


def test_an_empty_study_has_a_report(tmp_path: Path) -> None:
    synthetic = make(blocks=1, arms=2)
    bare = synthetic.decision.model_copy(
        update={
            "arms": tuple(arm.model_copy(update={"hypotheses": (), "values": {}, "evidence": ()}) for arm in synthetic.decision.arms),
            "effects": (),
            "noise": {},
            "complete": False,
        }
    )
    paths = write(tmp_path, synthetic, finished=False)
    page = Page(write_report(paths, bare, synthetic.plan, []).read_text())
    assert "NOT FINISHED" in page.text and "Not measured." in page.text


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    synthetic = make(blocks=1, arms=2)
    evil = synthetic.decision.model_copy(update={"question": "<script>alert(1)</script> & <b>"})
    paths = write(tmp_path, synthetic)
    assert "<script" not in render(paths, evil, synthetic.plan, synthetic.launches, NO_PLOTS)
