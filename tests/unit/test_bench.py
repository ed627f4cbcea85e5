"""The arithmetic of the benchmark and the form of what it writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from bench import plots, publish, results
from bench.contestants import CONTESTANTS, QUICK
from bench.main import main, source_digest
from bench.measures.families import FAMILIES
from bench.measures.windows import count_at, rate_between, rates
from bench.plan import FULL, QUICK_MEASURES
from bench.results import MEASURES, Figure, percentile, ratio, summarise

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = {
    ("latency_p50", "pgqueuer"): [3.0, 2.0, 4.0],
    ("drain_1", "holdfast"): [40_000.0, 20_000.0, 30_000.0],
    ("drain_1", "pgqueuer"): [6_000.0],
    ("drain_2", "pgqueuer"): [],
}


def test_a_figure_is_the_median_of_its_rounds_with_the_lowest_and_the_highest() -> None:
    drained = summarise(ROUNDS)[0]

    assert drained == Figure("drain_1", "holdfast", 30_000.0, 20_000.0, 40_000.0, "jobs/s", 3)


def test_figures_come_in_the_order_of_the_measures_and_only_where_something_was_measured() -> None:
    found = [(figure.measure, figure.subject) for figure in summarise(ROUNDS)]

    assert found == [
        ("drain_1", "holdfast"),
        ("drain_1", "pgqueuer"),
        ("latency_p50", "pgqueuer"),
    ]


def test_results_are_a_list_of_objects_with_the_seven_agreed_keys(tmp_path: Path) -> None:
    results.write(tmp_path / "results.json", summarise(ROUNDS))

    lines = json.loads((tmp_path / "results.json").read_text())

    keys = {"measure", "subject", "median", "low", "high", "unit", "rounds"}
    assert [set(line) for line in lines] == [keys] * 3
    assert results.read(tmp_path / "results.json") == summarise(ROUNDS)


def test_a_ratio_is_a_part_of_holdfasts_median_and_missing_where_that_is() -> None:
    figures = summarise(ROUNDS)

    assert [ratio(figure, figures) for figure in figures] == [1.0, 0.2, None]


@pytest.mark.parametrize(("percent", "value"), [(50, 50.5), (99, 99.01)])
def test_a_percentile_lies_between_the_nearest_values(percent: int, value: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], percent) == pytest.approx(value)


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert percentile([7.0], 99) == 7.0


def test_between_two_samples_a_count_rises_evenly_and_after_the_last_it_stays() -> None:
    samples = [(10.0, 100), (12.0, 300)]

    assert [count_at(samples, at) for at in (9.0, 10.0, 11.0, 12.0, 13.0)] == [
        *(0.0, 100.0, 200.0, 300.0, 300.0)
    ]


def test_the_speed_of_two_workers_is_the_sum_of_theirs() -> None:
    slow, fast = [(0.0, 0), (10.0, 100)], [(0.0, 0), (10.0, 900)]

    assert rate_between([slow, fast], 2.0, 4.0) == pytest.approx(100.0)


def test_windows_show_where_a_worker_slowed_down() -> None:
    samples = [(0.0, 0), (10.0, 1000), (20.0, 1200), (30.0, 2000)]

    assert rates(samples, 0.0, 10.0, 3) == pytest.approx([100.0, 20.0, 80.0])


def test_every_agreed_measure_is_taken_by_one_family() -> None:
    given = [measure for family in FAMILIES for measure in family.gives]

    assert sorted(given) == sorted(MEASURES)
    assert set(MEASURES) >= QUICK_MEASURES


def test_every_subject_has_a_script_and_skips_only_measures_that_exist() -> None:
    for contestant in CONTESTANTS.values():
        assert contestant.path.is_file()
        assert set(MEASURES) >= contestant.skips
    assert set(CONTESTANTS) >= set(QUICK)


def test_a_smaller_scale_keeps_every_size_usable() -> None:
    tiny = FULL.scaled(0.000_001)

    assert tiny.drain == 1
    assert tiny.steady_seconds == 1.0
    assert tiny.steady_waiting == FULL.steady_waiting


def test_a_chart_is_well_formed_and_names_every_subject() -> None:
    drawn = plots.draw(plots.Chart("Speed", ("drain_1",)), summarise(ROUNDS)[:2], "a <quick> run")

    texts = [element.text for element in ElementTree.fromstring(drawn).iter()]  # noqa: S314 (ours)
    assert {"Speed", "holdfast", "pgqueuer", "a <quick> run", "30,000 jobs/s"} <= set(texts)


def test_charts_without_figures_are_removed(tmp_path: Path) -> None:
    (tmp_path / "bench-xmin.svg").write_text("of another run")

    drawn = plots.draw_all(summarise(ROUNDS), tmp_path, "")

    assert {path.name for path in drawn} == {path.name for path in tmp_path.iterdir()}
    assert {path.name for path in drawn} == {"bench-drain.svg", "bench-latency.svg"}


def test_only_what_stands_between_the_markers_of_a_page_is_replaced() -> None:
    page = "before\n<!-- run -->\nold\n<!-- /run -->\nafter\n"

    replaced = publish.replaced(page, "run", "new")

    assert replaced == "before\n<!-- run -->\nnew\n<!-- /run -->\nafter\n"
    with pytest.raises(ValueError, match="markers <!-- figures -->"):
        publish.replaced(page, "figures", "new")


def test_an_unknown_measure_is_refused_with_the_list_of_those_there_are() -> None:
    with pytest.raises(SystemExit, match=r"unknown: drain_9; there are enqueue_single, "):
        main(["--only", "drain_9"])


def test_a_change_of_the_source_during_a_run_can_be_seen(tmp_path: Path) -> None:
    (tmp_path / "claim.sql").write_text("select 1")
    (tmp_path / "notes.txt").write_text("not code")
    before = source_digest(tmp_path)

    (tmp_path / "notes.txt").write_text("other words")
    assert source_digest(tmp_path) == before

    (tmp_path / "claim.sql").write_text("select 2")
    assert source_digest(tmp_path) != before
