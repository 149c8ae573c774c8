"""The page of figures is what the raw results say, and outputs are compared as it says."""

from typing import Any

from benchmarks.in_turn import compare_outputs
from benchmarks.report import PAGE, page


def test_the_page_is_written_from_the_results() -> None:
    assert PAGE.read_text() == page(), "run python -m benchmarks.report"


def test_outputs_are_compared_with_the_first_variants() -> None:
    results: list[tuple[str, dict[str, Any]]] = [
        ("stock", {"outputs": [[1, 2, 3], [4, 5]]}),
        ("broken", {"error": "did not start"}),
        ("best", {"outputs": [[1, 2, 9], [4, 5]]}),
        ("shorter", {"outputs": [[1, 2], [4, 5]]}),
    ]
    compare_outputs(results)
    found = {name: (r.get("outputs_as_first"), r.get("equal_token_share")) for name, r in results}
    assert found == {
        "stock": ("2 of 2", 1.0),
        "broken": (None, None),
        "best": ("1 of 2", 0.8),
        "shorter": ("1 of 2", 0.8),
    }
