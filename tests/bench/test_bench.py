"""Does the bench judge as it should?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.bench import bars, report
from tests.bench.cases import Findings
from tests.bench.measure import Meter, Spread, cpu_ms, median, rss_mb, spread

KEPT, MISSED = bars.Bar("a", "1", True), bars.Bar("b", "2", False)
CELERY = 60.0
KNOWN = CELERY * bars.DBOS_TO_CELERY


def test_all_bars_kept_is_success_and_one_missed_is_not() -> None:
    assert bars.exit_code([KEPT, KEPT], None) == bars.OK == 0
    assert bars.exit_code([KEPT, MISSED], None) == bars.BELOW == 1


def test_an_unfit_machine_makes_good_and_bad_figures_worthless() -> None:
    assert bars.exit_code([KEPT], "noisy") == bars.exit_code([MISSED], "noisy") == bars.INVALID == 2


@pytest.mark.parametrize(("factor", "fits"), [(0.74, False), (0.76, True), (1.0, True), (1.24, True), (1.26, False)])
def test_peers_may_stray_by_a_quarter(factor: float, fits: bool) -> None:
    assert (bars.fit(KNOWN * factor, CELERY) is None) is fits


def test_the_faster_peer_counts() -> None:
    assert bars.peers(180.0, {"DBOS": 50.0, "Celery": 60.0}).kept
    assert not bars.peers(179.0, {"DBOS": 50.0, "Celery": 60.0}).kept
    assert not bars.peers(179.0, {"DBOS": 60.0, "Celery": 50.0}).kept


def test_executors_must_be_as_fast_as_workers() -> None:
    assert bars.called(50.0, 50.0).kept
    assert not bars.called(49.9, 50.0).kept


def test_latency_must_stay_below_its_bars() -> None:
    assert bars.swift("HTTP", 99.9).kept
    assert not bars.swift("HTTP", 100.0).kept
    assert bars.listing("all", 49.9).kept
    assert not bars.listing("all", 50.0).kept


def test_cpu_per_saga_must_fall_at_every_step() -> None:
    assert bars.falling("HTTP", [5.0, 2.0, 1.0]).kept
    assert not bars.falling("HTTP", [5.0, 5.0, 1.0]).kept
    assert not bars.falling("HTTP", [5.0, 2.0, 2.1]).kept


def test_memory_and_the_hot_path_have_a_margin() -> None:
    assert bars.flat("node", 100.0, 105.0).kept
    assert not bars.flat("node", 100.0, 105.2).kept
    assert bars.stored(1_000_000, 1.0, 1.09).kept
    assert not bars.stored(1_000_000, 1.0, 1.11).kept


def test_what_is_observed_has_a_margin() -> None:
    assert bars.observed("log lines", 1000.0, 951.0).kept
    assert not bars.observed("log lines", 1000.0, 950.0).kept
    assert bars.observed("traces of one saga in ten", 1000.0, 851.0).kept
    assert not bars.observed("traces of one saga in ten", 1000.0, 849.0).kept


def test_a_leader_is_followed_in_time() -> None:
    assert bars.led("killed", 999.9).kept
    assert not bars.led("killed", 1000.0).kept
    assert bars.led("stopped", 499.9).kept
    assert not bars.led("stopped", 500.0).kept


def test_jobs_are_handed_over_and_owned_in_time() -> None:
    assert bars.handed(99.9).kept
    assert not bars.handed(100.0).kept
    assert bars.owned("", bars.MISSED, 4999.0).kept
    assert not bars.owned("", bars.MISSED, 5000.0).kept
    assert bars.owned(" by timers alone", bars.SILENT, 64_999.0).kept
    assert not bars.owned(" by timers alone", bars.SILENT, 65_000.0).kept
    assert bars.drained(500, 9999.0).kept
    assert not bars.drained(500, 10_000.0).kept


def test_jobs_reach_workers_fast_enough() -> None:
    assert bars.dispatched(50.0).kept
    assert not bars.dispatched(49.9).kept


def test_heartbeats_must_cost_little() -> None:
    assert bars.heard("node", "executors", 9.99).kept
    assert not bars.heard("node", "executors", 10.0).kept
    assert bars.heard("database", "executors", 2.99).kept
    assert not bars.heard("database", "executors", 3.0).kept
    assert bars.heard("coordinator", "members", 9.99).kept
    assert not bars.heard("coordinator", "members", 10.0).kept


def test_shards_must_be_rebalanced_within_a_second() -> None:
    assert bars.rebalanced("even", 999.9).kept
    assert not bars.rebalanced("even", 1000.0).kept


def test_a_part_that_was_not_measured_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    found = Findings(bars=[KEPT])
    assert found.figure("a leader killed", [3.0, 1.0, 2.0]) == Spread(2.0, 3.0, 3.0)
    text = "\n".join(report.lines(found))
    assert "a leader killed      3    2    3      3  ms" in text
    assert "GET /apps" not in text
    assert "sagas/s" not in text
    assert "a leader killed: 3 times, p50 2, p99 3 ms" in capsys.readouterr().out


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert spread([float(n) for n in range(100, 0, -1)]) == Spread(50.0, 99.0, 100.0)
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5


def test_processor_time_counts_living_and_ended_children() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    meter = Meter({"all": os.getpid()})
    subprocess.run([sys.executable, "-c", burn], check=True)
    after_the_ended = meter.read()["all"]
    assert after_the_ended >= 280
    living = subprocess.Popen([sys.executable, "-c", burn + "\nprint(flush=True)\ninput()"], stdin=-1, stdout=-1)
    with living:
        assert living.stdout is not None
        living.stdout.readline()
        assert cpu_ms(living.pid) >= 280
        assert meter.read()["all"] >= after_the_ended + 280
        living.kill()


def test_memory_of_this_process_is_a_plausible_number() -> None:
    assert 5 < rss_mb(os.getpid()) < 5000
