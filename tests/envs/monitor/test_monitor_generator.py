import re
from collections import Counter

import pytest

from assay.envs.monitor import function_process
from assay.envs.monitor.function_process import Job, Outcome, run_jobs
from assay.envs.monitor.functions import TEMPLATES, problems
from assay.envs.monitor.generator import GeneratorConfig, generate
from assay.envs.monitor.rows import split_of
from assay.errors import ConfigError, DataError, EngineError

COUNT = 300


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return generate("train", COUNT, 0, GeneratorConfig(), tmp_path_factory.mktemp("functions"))


def description(row):
    return row.text.partition("\n")[0]


def code_of(row):
    """The implementation of a row and its tests as written: (call, wanted)."""
    source, tests = re.fullmatch(r"# .*\n(def f\(.*\):\n    return .*\n)((?:f\(.*\) == .*\n)+)", row.text).groups()
    return source, [line.rsplit(" == ", 1) for line in tests.splitlines()]


def test_there_are_many_functions_with_several_kinds_of_fault():
    assert len(TEMPLATES) >= 25 and len({template.name for template in TEMPLATES}) == len(TEMPLATES)
    assert all(len(template.faults) >= 2 for template in TEMPLATES)
    kinds = Counter(kind for template in TEMPLATES for kind in template.faults)
    assert len(kinds) >= 6 and min(kinds.values()) >= 2
    everything = list(problems())
    assert len({problem.key for problem in everything}) == len(everything) > 300
    assert all(problem.a != problem.b for problem in everything)


def test_measurements_are_what_the_written_tests_give_when_run_here(rows):
    for row in rows:
        source, tests = code_of(row)
        scope = {}
        exec(source, scope)
        assert tuple(bool(eval(f"{call} == {wanted}", scope)) for call, wanted in tests) == row.measurements


def test_the_latent_variable_is_that_of_a_right_implementation_by_hand(rows):
    """For one family, whose right body is written here again."""
    found = [row for row in rows if re.match(r"# Add \d+ to x\.", row.text)]
    assert len(found) >= 3
    for row in found:
        scope = {}
        exec(code_of(row)[0], scope)
        constant = int(re.search(r"\d+", row.text)[0])
        assert row.is_correct == all(scope["f"](x) == x + constant for x in range(-5, 40))


def test_kinds_have_their_shares_and_are_what_they_say(rows):
    kinds = Counter(row.tags[0] for row in rows)
    assert abs(kinds["correct"] / COUNT - 0.5) < 0.1
    assert abs((kinds["table"] + kinds["weak_tests"]) / COUNT - 0.25) < 0.08
    for row in rows:
        kind = row.tags[0]
        assert row.is_correct == (kind == "correct")
        assert all(row.measurements) == (kind != "faulty")
        assert row.is_clean == (kind in ("correct", "faulty"))
        assert (".get(" in row.text) == (kind == "table")


def test_the_shares_follow_the_settings(tmp_path):
    config = GeneratorConfig(num_tests=2, fault_fraction=1.0, tampered_fraction=0.0)
    made = generate("train", 40, 0, config, tmp_path)
    assert {row.tags[0] for row in made} == {"faulty"}
    assert {len(row.measurements) for row in made} == {2}


def test_equal_seeds_give_equal_rows_and_more_rows_keep_the_first(rows):
    assert generate("train", COUNT, 0, GeneratorConfig(), None) == rows
    assert generate("train", 50, 0, GeneratorConfig(), None) == rows[:50]
    assert not {row.key for row in generate("train", 50, 1, GeneratorConfig(), None)} & {row.key for row in rows[:50]}


def test_no_text_comes_twice_and_no_description_is_on_two_sides(rows):
    assert len({row.key for row in rows}) == COUNT
    held = {split: generate(split, 80, 0, GeneratorConfig(), None) for split in ("validation", "final")}
    sides = [{description(row) for row in side} for side in (rows, *held.values())]
    assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]
    assert {split_of(problem.key) for problem in problems()} == {"train", "validation", "final"}


def test_outcomes_are_kept_and_a_damaged_file_is_made_again(tmp_path, monkeypatch, caplog):
    jobs = [Job("def f(x):\n    return x + 1\n", [[1], [2]])]
    assert run_jobs(jobs, tmp_path) == [[Outcome(2), Outcome(3)]]
    (file,) = tmp_path.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(function_process, "_execute", lambda *_: pytest.fail("was run again"))
        assert run_jobs(jobs, tmp_path) == [[Outcome(2), Outcome(3)]]
    for damage in ("[[", "[]", "[[[1, null]]]"):
        file.write_text(damage)
        assert run_jobs(jobs, tmp_path) == [[Outcome(2), Outcome(3)]]
    assert len(caplog.records) == 3 and "damaged" in caplog.text
    run_jobs([Job("def f(x):\n    return x + 2\n", [[1], [2]])], tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert run_jobs([Job("def f():\n    return 1\n", [[]])], tmp_path / "file" / "below") == [[Outcome(1)]]
    assert "cannot be kept" in caplog.text


def test_functions_that_raise_or_hang_say_so():
    jobs = [
        Job("def f(x):\n    return 1 // x\n", [[0], [1]]),
        Job("def f(x):\n    while x: pass\n    return x\n", [[1], [0]]),
    ]
    assert run_jobs(jobs, None) == [
        [Outcome(None, "ZeroDivisionError"), Outcome(1)],
        [Outcome(None, "TimeoutError"), Outcome(0)],
    ]
    assert not Outcome(None, "TimeoutError").equals(Outcome(None, "TimeoutError"))


def test_time_that_a_function_only_waits_is_not_its_own() -> None:
    """On a busy machine a function waits for the processor; its outcome must not depend on that."""
    source = "def f():\n    import time\n    time.sleep(1.2)\n    return 1\n"
    assert run_jobs([Job(source, [[]])], None) == [[Outcome(1)]]


def test_a_process_that_dies_is_an_error_and_no_measurement():
    with pytest.raises(EngineError, match="ended with status 3"):
        run_jobs([Job("def f():\n    import os\n    os._exit(3)\n", [[]])], None)
    with pytest.raises(EngineError, match="SyntaxError"):
        run_jobs([Job("def f(:", [[]])], None)


def test_functions_can_write_no_files(tmp_path):
    source = f"def f():\n    open({str(tmp_path / 'x')!r}, 'w').write('x' * 10)\n"
    run_jobs([Job(source, [[]])], None)
    assert (tmp_path / "x").read_text() == ""


def test_too_many_rows_are_refused(monkeypatch):
    few = [problem for problem in problems() if problem.template.name == "first"]
    monkeypatch.setattr("assay.envs.monitor.generator.problems", lambda: iter(few))
    monkeypatch.setattr("assay.envs.monitor.generator.ATTEMPTS", 3)
    monkeypatch.setattr("assay.envs.monitor.generator.draw_inputs", lambda *_: [[[n]] for n in range(4)])
    with pytest.raises(DataError, match=r"of 400 different train functions could be made\. Lower num_train"):
        generate("train", 400, 0, GeneratorConfig(), None)


@pytest.mark.parametrize("settings", [{"num_tests": 0}, {"fault_fraction": 1.5}, {"tampered_fraction": -0.1}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ConfigError, match="must be at"):
        GeneratorConfig(**settings)
