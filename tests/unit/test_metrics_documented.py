"""The page about metrics is the table in the code, word for word."""

import re
from pathlib import Path

from hybrid_serve import metrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_has_the_table_of_the_code() -> None:
    assert metrics.table() in PAGE.read_text()


def test_the_page_names_no_other_metric() -> None:
    named = set(re.findall(r"ray_hybrid_serve_\w+", PAGE.read_text()))
    assert named == {metric.exported for metric in metrics.ALL}


def test_no_counter_has_a_label_that_grows_with_replicas() -> None:
    assert all("replica" not in metric.tags for metric in metrics.ALL if metric.kind == "counter")
