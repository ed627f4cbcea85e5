"""The arithmetic of the benchmark and the form of what it writes."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from bench import goals, plots, publish, record, results
from bench.contestants import CONTESTANTS, QUICK
from bench.facts import source_digest
from bench.main import main
from bench.measures.enqueue import WITHOUT_NOTIFY
from bench.measures.windows import count_at, evened, medians, rate_between, rates
from bench.plan import GROUPS, QUICK_MEASURES, QUICK_ROUNDS, Plan, unneeded
from bench.record import Record, Taken
from bench.results import MEASURES, Figure, percentile, ratio, summarise
from bench.sizes import FULL
from bench.sizes import QUICK as QUICK_SIZES

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


def test_results_are_a_list_of_objects_with_the_seven_agreed_keys() -> None:
    lines = json.loads(results.as_text(summarise(ROUNDS)))

    keys = {"measure", "subject", "median", "low", "high", "unit", "rounds"}
    assert [set(line) for line in lines] == [keys] * 3
    assert [Figure(**line) for line in lines] == summarise(ROUNDS)


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


def test_speeds_by_what_the_machine_could_do_differ_by_what_its_host_took() -> None:
    taken = rates([(0.0, 5.0), (10.0, 5.0), (20.0, 9.0)], 0.0, 10.0, 2)
    assert taken == pytest.approx([0.0, 0.4])
    assert evened([100.0, 60.0], taken, [20.0, 20.0]) == pytest.approx([100.0, 100.0])


def test_and_by_what_the_same_work_cost() -> None:
    samples = [(0.5, 20.0), (1.0, 90.0), (9.0, 20.0), (10.5, 40.0), (19.0, 42.0), (19.5, 10.0)]
    efforts = medians(samples, 0.0, 10.0, 2)
    assert efforts == [20.0, 40.0]
    assert medians(samples, 0.0, 10.0, 3)[2] == 30.0
    assert evened([100.0, 50.0], [0.0, 0.0], efforts) == pytest.approx([100.0, 100.0])


def test_windows_show_where_a_worker_slowed_down() -> None:
    samples = [(0.0, 0), (10.0, 1000), (20.0, 1200), (30.0, 2000)]

    assert rates(samples, 0.0, 10.0, 3) == pytest.approx([100.0, 20.0, 80.0])


def test_every_agreed_measure_is_taken_by_one_family() -> None:
    given = [measure for group in GROUPS for family in group for measure in family.gives]

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


def test_a_folder_without_postgresql_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--pg", str(tmp_path)])

    assert f"there is no initdb in {tmp_path}" in capsys.readouterr().err


def test_a_postgresql_that_may_not_be_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "initdb").touch(mode=0o644)
    only = ("--only", "drain_1", "--subjects", "holdfast")

    with pytest.raises(SystemExit, match=rf"{tmp_path}/initdb cannot be started \(Permission"):
        main(["--pg", str(tmp_path), "--data", str(tmp_path), *only])


def whole() -> Plan:
    return Plan(list(MEASURES), list(CONTESTANTS.values()), FULL)


def test_a_whole_run_is_foretold_to_fit_into_two_hours_and_a_quick_one_into_6() -> None:
    few = [CONTESTANTS[name] for name in QUICK]
    quick = Plan(list(QUICK_MEASURES), few, QUICK_SIZES, QUICK_ROUNDS)

    assert sum(whole().seconds(whole().steps())) < 120 * 60
    assert sum(quick.seconds(quick.steps())) < 6 * 60


def test_every_round_begins_with_another_subject() -> None:
    drains = [step for step in whole().steps() if step.family.name == "drain_2"]

    names = [step.subject.name for step in drains]
    once = [name for name, each in CONTESTANTS.items() if "drain_2" not in each.skips]
    assert names == [*once, *once[1:], *once[:1], *once[2:], *once[:2]]


def test_a_round_has_every_short_measure_before_the_next_round_begins() -> None:
    turns = [step.turn for step in whole().steps() if step.family in GROUPS[0]]

    assert turns == sorted(turns)
    assert set(turns) == set(range(max(family.rounds for family in GROUPS[0])))


def test_those_that_a_goal_compares_have_the_most_rounds() -> None:
    drains = Counter(step.subject.name for step in whole().steps() if step.family.name == "drain_1")
    minutes = Counter(
        step.subject.name for step in whole().steps() if step.family.name == "steady_first"
    )

    assert (drains["holdfast"], drains["graphile-worker"], drains["saq"]) == (7, 7, 3)
    assert (minutes["holdfast"], minutes["limit"], minutes["graphile-worker"]) == (3, 3, 1)


def test_steps_that_were_taken_before_are_left_out_and_failed_ones_are_not() -> None:
    found = Record()
    found.add(Taken("drain_1", 0, "saq", 1.0, {"drain_1": 300.0}))
    found.add(Taken("drain_1", 0, "chancy", 1.0, failure="chancy: no answer within 60 s"))
    plan = Plan(["drain_1"], list(CONTESTANTS.values()), FULL, 1, found.done())

    left = [step.subject.name for step in plan.steps()]

    assert left == [name for name in CONTESTANTS if name != "saq"]


def test_of_two_takes_of_a_step_the_less_disturbed_one_counts() -> None:
    def taken(speed: float, stolen: float | None, failure: str | None = None) -> Taken:
        values = {} if failure else {"drain_1": speed}
        return Taken("drain_1", 0, "saq", 1.0, values, failure=failure, stolen=stolen)

    found = Record()
    for one in (
        taken(0.0, 0.0, "saq: no answer"),
        taken(100.0, 0.3),
        taken(200.0, 0.2),
        taken(300.0, 0.4),
        taken(0.0, 0.0, "saq: no answer"),
    ):
        found.add(one)

    assert [one.values for one in found.taken] == [{"drain_1": 200.0}]
    assert found.disturbed() == {("drain_1", 0, "saq")}
    found.add(taken(400.0, 0.01))
    assert found.disturbed() == set()
    assert found.stolen() == [0.01]


def test_a_template_is_dropped_with_the_last_step_that_needs_it() -> None:
    plan = Plan(["drain_1", "drain_2", "enqueue_bulk"], [CONTESTANTS["saq"]], FULL, rounds=1)
    enqueue, one, two = plan.steps()

    assert unneeded(enqueue, [one, two]) is None
    assert unneeded(one, [two]) is None
    assert unneeded(two, []) == "waiting"


def test_a_slow_subject_gets_as_many_jobs_as_it_does_in_the_time() -> None:
    slow, fast = FULL.of(CONTESTANTS["saq"].pace), FULL.of(CONTESTANTS["holdfast"].pace)

    assert slow.drain == CONTESTANTS["saq"].pace.drain * FULL.drain_seconds
    assert fast == FULL


def test_the_raw_limit_finds_as_many_jobs_as_the_subject_whose_tables_it_shares() -> None:
    limit = CONTESTANTS["limit"]

    assert limit.owner is CONTESTANTS["holdfast"]
    assert FULL.of(limit.pace) == FULL.of(limit.owner.pace)


def test_a_saved_run_is_read_back_with_its_figures(tmp_path: Path) -> None:
    saved = Record({"date": "2026-01-01"})
    saved.add(Taken("drain_1", 0, "saq", 1.0, failure="saq: no answer within 60 s"))
    saved.add(Taken("drain_1", 0, "saq", 2.0, {"drain_1": 300.0}, {"jobs": 5}))

    record.save(saved, tmp_path / "deep" / "results.json")
    read = record.load(tmp_path / "deep" / "results.json")

    assert read == saved
    assert read.figures() == [Figure("drain_1", "saq", 300.0, 300.0, 300.0, "jobs/s", 1)]
    assert read.failures() == {}


def test_figures_without_their_steps_are_not_continued(tmp_path: Path) -> None:
    (tmp_path / "results-run.json").write_text('{"date": "2026-01-01"}')

    with pytest.raises(SystemExit, match=r"results-run\.json has no steps: run the benchmark anew"):
        main(["--resume", "--results", str(tmp_path / "results.json")])


def test_a_quick_run_is_not_continued_as_a_whole_one(tmp_path: Path) -> None:
    record.save(Record({"profile": "quick", "scale": 1.0}), tmp_path / "results.json")

    with pytest.raises(SystemExit, match="another kind of run"):
        main(["--resume", "--results", str(tmp_path / "results.json")])


def test_a_run_that_saw_two_states_of_the_code_says_so() -> None:
    assert "the source" in Record({"sources": ["a", "b"]}).failures()
    assert "the source" not in Record({"sources": ["a"]}).failures()


def speeds(**drained: float) -> Record:
    """A run of one measure, with dashes in the names of the subjects."""
    found = Record()
    for subject, speed in drained.items():
        name = subject.replace("_", "-")
        found.add(Taken("drain_1", 0, name, 1.0, {"drain_1": speed}))
    return found


def test_only_goals_that_have_figures_are_judged() -> None:
    judged = goals.judge(speeds(holdfast=40_000.0, graphile_worker=20_000.0, pgqueuer=20_000.0))

    assert [(one.goal.what, one.value, one.reached) for one in judged] == [
        ("drain ÷ Graphile Worker", 2.0, True),
        ("drain ÷ PgQueuer", 2.0, False),
    ]


def test_the_best_peer_in_latency_is_the_one_that_waits_least() -> None:
    found = Record()
    for subject, waited in {"holdfast": 3.0, "saq": 6.0, "chancy": 4.0}.items():
        found.add(Taken("latency_p50", 0, subject, 1.0, {"latency_p50": waited}))

    [judged] = goals.judge(found)

    assert judged.value == 0.75
    assert not judged.reached


def test_subjects_are_compared_round_by_round() -> None:
    found = Record()
    # The machine got faster, and of the first round a subject has nothing: by medians it were 2.
    for turn, speed in enumerate([10.0, 20.0, 40.0]):
        found.add(Taken("drain_1", turn, "holdfast", 1.0, {"drain_1": speed * 3}))
        if turn:
            found.add(Taken("drain_1", turn, "graphile-worker", 1.0, {"drain_1": speed}))

    [judged] = goals.judge(found)

    assert judged.value == 3.0


def test_what_a_step_found_both_ways_is_compared_step_by_step() -> None:
    found = Record()
    # The machine was twice as slow in the second round, and a peer has nothing to compare with.
    for turn, (telling, quiet) in enumerate([(900.0, 1_000.0), (480.0, 500.0), (930.0, 1_000.0)]):
        notes = {WITHOUT_NOTIFY: quiet}
        values = {"enqueue_producers": telling}
        found.add(Taken("enqueue_producers", turn, "holdfast", 1.0, values, notes))
        found.add(Taken("enqueue_producers", turn, "saq", 1.0, values))

    [judged] = goals.judge(found)

    assert judged.goal.what == "8 producers ÷ without NOTIFY"
    assert judged.value == 0.93
    assert judged.reached


def test_a_page_names_every_measure_in_which_a_peer_is_ahead() -> None:
    behind = speeds(holdfast=10_000.0, pgqueuer=9_000.0, limit=20_000.0).figures()
    ahead = speeds(holdfast=10_000.0, pgqueuer=9_000.0, saq=11_000.0).figures()

    assert publish.peers_ahead(behind) == "In no measure of this run."
    assert publish.peers_ahead(ahead).endswith("saq 11,000; Holdfast 10,000 jobs/s.")


def test_lines_over_time_name_every_subject_and_never_one_above_another() -> None:
    lines = {"holdfast": [5.0, 5.0], "saq": [9.0, 0.0], "chancy": [1.0, 0.0]}

    drawn = ElementTree.fromstring(plots.lines_over_time("Minutes", lines, ""))  # noqa: S314 (ours)

    places = {element.text: float(element.get("y", 0)) for element in drawn.iter() if element.text}
    assert set(lines) <= set(places)
    assert abs(places["saq"] - places["chancy"]) >= plots.LINE


def test_a_chart_is_well_formed_and_names_every_subject() -> None:
    drawn = plots.draw(plots.Chart("Speed", ("drain_1",)), summarise(ROUNDS)[:2], "a <quick> run")

    texts = [element.text for element in ElementTree.fromstring(drawn).iter()]  # noqa: S314 (ours)
    assert {"Speed", "holdfast", "pgqueuer", "a <quick> run", "30,000 jobs/s"} <= set(texts)


def test_charts_without_figures_are_removed(tmp_path: Path) -> None:
    (tmp_path / "bench-xmin.svg").write_text("of another run")

    drawn = plots.draw_all(summarise(ROUNDS), {}, tmp_path, "")

    assert {path.name for path in drawn} == {path.name for path in tmp_path.iterdir()}
    assert {path.name for path in drawn} == {"bench-drain.svg", "bench-latency.svg"}


def test_only_what_stands_between_the_markers_of_a_page_is_replaced() -> None:
    page = "before\n<!-- run -->\nold\n<!-- /run -->\nafter\n"

    replaced = publish.replaced(page, "run", "new")

    assert replaced == "before\n<!-- run -->\nnew\n<!-- /run -->\nafter\n"
    with pytest.raises(ValueError, match="markers <!-- figures -->"):
        publish.replaced(page, "figures", "new")


def test_an_unknown_measure_is_refused_with_the_list_of_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "drain_1", "drain_9"])

    said = capsys.readouterr().err
    assert "invalid choice: 'drain_9'" in said
    assert "enqueue_single" in said


def test_a_change_of_the_source_during_a_run_can_be_seen(tmp_path: Path) -> None:
    (tmp_path / "claim.sql").write_text("select 1")
    (tmp_path / "notes.txt").write_text("not code")
    before = source_digest(tmp_path)

    (tmp_path / "notes.txt").write_text("other words")
    assert source_digest(tmp_path) == before

    (tmp_path / "claim.sql").write_text("select 2")
    assert source_digest(tmp_path) != before
