"""Suites can be read, and what counts as saturated is the time when requests wait, come and go."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.side_by_side import Suite, parser, read_suite, table
from benchmarks.standing import Sample, saturated

SUITES = sorted((Path(__file__).parents[2] / "benchmarks/suites").glob("*.json"))


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_a_suite_compares_with_stock_and_warms_up(path: Path) -> None:
    cases = [case for stage in read_suite(path) for case in stage]
    assert cases and len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.variants[0] == "stock" and len(case.levels) > 1
        assert case.command_line("best", [str(path)])[-1] == "--variant=best"


def test_what_is_given_wins_over_what_a_suite_says() -> None:
    (case,) = read_suite(SUITES[0].with_name("cpu.json"))[0]
    line = case.command_line("stock", ["suite.json", "--kv-memory=1GiB", '--engine-args={"seed": 1}'])
    assert line.index("--kv-memory=1GiB") > line.index("--kv-memory=256MiB")
    assert '--engine-args={"seed": 1}' in line


def test_the_rate_is_that_between_the_first_turnover_and_the_last_waiting_request() -> None:
    samples = [
        Sample(0.0, 0, 0, 100, 1000),
        Sample(0.5, 10, 0, 100, 1000),
        Sample(1.0, 4, 6, 100, 1040),
        Sample(2.0, 4, 3, 103, 1100),
        Sample(3.0, 4, 2, 104, 1200),
        Sample(4.0, 4, 1, 105, 1320),
        Sample(5.0, 4, 1, 105, 1400),
        Sample(6.0, 4, 0, 106, 1500),
        Sample(7.0, 0, 0, 110, 1550),
    ]
    assert saturated(samples) == {"seconds": 2.0, "running": 4.0, "finished": 1, "output_throughput": 100.0}


def test_a_record_of_earlier_requests_does_not_begin_the_rate() -> None:
    samples = [Sample(float(second), 4, 9, 50, 100 * second) for second in range(5)]
    assert saturated(samples) is None


def test_a_level_that_nobody_waits_in_has_no_such_rate() -> None:
    assert saturated([]) is None
    assert saturated([Sample(float(n), 4, 0, n, 10 * n) for n in range(9)]) is None


def test_a_case_whose_engine_did_not_start_is_told_in_the_table() -> None:
    assert "bf16 | 'stock: out of memory' |" in table(
        [{"case": "bf16", "engines": [], "runs": [], "greedy": [], "error": "stock: out of memory"}]
    )


def test_a_case_that_a_suite_does_not_have_is_refused() -> None:
    suite = str(SUITES[0].with_name("cpu.json"))
    asked = Suite(parser().parse_args([suite, "--case", "bf61"]), [suite])
    with pytest.raises(SystemExit, match="no case bf61; it has bf16"):
        asyncio.run(asked.run())
