"""Each definition against streams worked out by hand. Times in seconds."""

import math

import numpy as np
import pytest

from runner.loadgen import measures as m
from runner.loadgen.measures import Request, Window
from runner.records.metrics import BY_NAME
from runner.spec.workload import Slo


def request(sent: float = 1.0, times: tuple[float, ...] = (), tokens: tuple[int, ...] = (), **more: object) -> Request:
    fields: dict[str, object] = {"scheduled": sent, "ended": times[-1] if times else sent + 1, **more}
    return Request(sent=sent, times=times, tokens=tokens, **fields)  # type: ignore[arg-type]


# Scheduled at 1.0, sent at 1.5; chunks of 1, 3 and 2 tokens at 2.0, 2.6, 3.0.
HAND = request(1.5, (2.0, 2.6, 3.0), (1, 4, 6), scheduled=1.0)


def test_latencies_by_hand() -> None:
    assert m.ttft(HAND) == pytest.approx(0.5)
    assert m.ttft_scheduled(HAND) == pytest.approx(1.0)
    assert m.tpot(HAND) == pytest.approx(1.0 / 5)
    assert m.e2e(HAND) == pytest.approx(1.5)
    assert m.queue_wait(HAND) == pytest.approx(0.5)
    assert m.chunk_gaps(HAND) == pytest.approx([0.6, 0.4])


def test_a_first_chunk_of_many_tokens_is_taken_off_tpot() -> None:
    assert m.tpot(request(0, (1.0, 2.0), (5, 7))) == pytest.approx(0.5)


def test_one_chunk_has_no_tpot_and_no_token_has_nothing() -> None:
    assert math.isnan(m.tpot(request(0, (1.0,), (8,))))
    assert math.isnan(m.tpot(request(0, (1.0, 2.0), (8, 8))))
    assert math.isnan(m.ttft(request(0)))
    assert math.isnan(m.e2e(request(0)))
    assert m.chunk_gaps(request(0)).size == 0


def test_a_clock_that_goes_back_gives_no_negative_time() -> None:
    backwards = request(5.0, (4.0, 3.0), (1, 2), scheduled=6.0)
    for measure in (m.ttft, m.ttft_scheduled, m.tpot, m.e2e, m.queue_wait):
        assert math.isnan(measure(backwards))
    assert np.isnan(m.chunk_gaps(backwards)).all()


def test_throughputs_count_what_arrived_inside_the_window() -> None:
    window = Window(2.0, 3.0)
    assert m.tokens_inside(HAND, window) == 5  # the chunk at the window's start belongs to the ramp
    assert m.output_throughput([HAND, HAND], window) == pytest.approx(10.0)
    early = request(0.5, (2.5, 3.5), (2, 4), prompt_tokens=100)
    assert m.input_throughput([HAND, early], window) == pytest.approx(100.0)
    assert m.request_throughput([HAND, early], window) == pytest.approx(1.0)
    failed = request(0.5, (2.5,), (2,), outcome="failed")
    assert m.output_throughput([failed], window) == pytest.approx(2.0)
    assert m.request_throughput([failed], window) == 0.0


def test_goodput_has_every_sent_request_below_the_line() -> None:
    slo = Slo(ttft_ms=600, tpot_ms=300)
    slow = request(1.0, (2.0, 2.5), (1, 3))
    failed = request(1.0, (1.2, 1.4), (1, 2), outcome="truncated")
    assert m.meets(HAND, slo)
    assert m.goodput_share([HAND, slow, failed, request(1.0, outcome="failed")], slo) == pytest.approx(0.25)
    assert m.goodput_rate([HAND, slow, failed], slo, Window(2.0, 4.0)) == pytest.approx(0.5)
    assert m.meets(request(0, (0.1,), (4,)), Slo(tpot_ms=1))  # no TPOT: that limit is met


def test_littles_law_holds_for_a_steady_load_and_not_for_lost_requests() -> None:
    # Two streams back to back, each stay one second: L = 2, lambda = 2/s, W = 1 s.
    steady = [request(float(at), (at + 0.5, at + 1.0), (1, 2)) for at in range(1, 11) for _ in range(2)]
    window = Window(1.0, 11.0)
    assert m.in_flight_mean(steady, window) == pytest.approx(2.0)
    assert m.littles_law_residual(steady, window, 20) == pytest.approx(0.0, abs=1e-9)
    assert m.littles_law_residual(steady, window, 21) is None
    # One that stays from before the window to after it is in flight all the time and never inside.
    stuck = request(-10.0, (12.0,), (1,), ended=100.0)
    assert m.littles_law_residual([*steady, stuck], window, 20) == pytest.approx(1 / 3)


def test_rate_error() -> None:
    assert m.rate_error(200, 178) == pytest.approx(0.11)
    assert math.isnan(m.rate_error(0, 1))


def test_percentiles_leave_nan_out() -> None:
    assert m.percentile([1.0, math.nan, 3.0], 50) == 2.0
    assert math.isnan(m.percentile([math.nan], 50))


def rounds(concurrency: int, count: int, length: float = 1.0, stagger: float = 0.0) -> list[Request]:
    made = []
    for number in range(count):
        for stream in range(concurrency):
            begin = number * length + stream * stagger
            end = begin + length
            made.append(request(begin + 1e-6, (begin + 0.5 * length, end), (1, 10), ended=end))
    return made


def test_the_window_holds_whole_rounds_of_a_closed_loop() -> None:
    window = m.steady_window(rounds(4, 3), 4, stopped_sending=3.0)
    assert (window.start, window.end) == pytest.approx((1e-6, 3.0))
    assert m.request_throughput(rounds(4, 3), window) == pytest.approx(4.0, rel=1e-5)


def test_ramp_and_drain_are_cut_off() -> None:
    window = m.steady_window(rounds(4, 3, stagger=0.2), 4, stopped_sending=3.0)
    assert (window.start, window.end) == pytest.approx((0.6, 3.0), abs=1e-5)


def test_ends_within_one_step_end_together() -> None:
    jittered = rounds(4, 3, stagger=0.001)
    assert m.steady_window(jittered, 4, 3.0).end == pytest.approx(3.0, abs=1e-5)
    assert m.steady_window(jittered, 4, 3.0, step=0.002).end == pytest.approx(3.003, abs=1e-5)


def test_one_round_is_a_window_and_nothing_is_none() -> None:
    one = rounds(4, 1)
    window = m.steady_window(one, 4, 0.0)
    assert window.length == pytest.approx(1.0, rel=1e-3)
    assert len(m.measured(one, window)) == 4
    assert m.steady_window([], 4, 0.0).length == 0
    assert m.summary([], Window(0, 0), None) == {}


def test_an_open_loop_is_cut_at_its_usual_level() -> None:
    arrivals = [request(at * 0.1, (at * 0.1 + 0.5, at * 0.1 + 1.0), (1, 5), ended=at * 0.1 + 1.0) for at in range(1, 101)]
    window = m.steady_window(arrivals, 64, stopped_sending=10.0)
    assert 0.8 <= window.start <= 1.2
    assert 9.9 <= window.end <= 10.4
    assert m.request_throughput(arrivals, window) == pytest.approx(10, rel=0.1)


def test_a_request_belongs_to_the_window_that_holds_its_middle() -> None:
    window = Window(2.0, 4.0)
    inside = request(1.5, (2.0, 2.6), (1, 2))
    outside = request(1.0, (1.5, 2.6), (1, 2))
    assert m.measured([inside, outside, request(2.5, (3.0,), (1,), outcome="failed")], window) == [inside]


def test_the_summary_speaks_the_registrys_names_and_no_nan() -> None:
    requests = rounds(4, 6)
    values = m.summary(requests, m.steady_window(requests, 4, 6.0), Slo(ttft_ms=600))
    assert set(values) == set(BY_NAME)
    assert all(math.isfinite(value) for value in values.values())
    assert values["tpot_p50_ms"] == pytest.approx(0.5 / 9 * 1e3)
    assert values["goodput_share"] == 1.0
    assert "goodput_share" not in m.summary(requests, Window(0, 6), Slo())


def test_standard_error_inside_a_phase_shrinks_with_requests_and_matches_theory() -> None:
    rng = np.random.default_rng(1)

    def noisy(count: int) -> list[Request]:
        ends = rng.normal(1.0, 0.05, count)
        return [request(float(i), (i + 0.1, i + 0.1 + float(e)), (1, 11)) for i, e in enumerate(ends)]

    errors = [m.within(noisy(400))["tpot_p50_ms"] for _ in range(60)]
    # The median's standard error is 1.253 sigma / sqrt(n): 5 % * 1.253 / 20.
    assert np.mean(errors) == pytest.approx(5 * 1.2533 / 20, rel=0.15)
    assert m.within(noisy(15)) == {}
