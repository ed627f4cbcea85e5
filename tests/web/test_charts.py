"""The scales of the charts have room for what they show."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="the extra holdfast[web] is not installed")

from holdfast.web.charts import ticks


@pytest.mark.parametrize("count", [2, 3])
def test_nothing_is_drawn_beyond_its_scale(count: int) -> None:
    for most in (*range(400), 999, 1001, 25_000, 10_000_000):
        end, steps = ticks(most, count)
        assert end >= most, most
        assert steps[-1] == end
        assert all(step == round(step) for step in steps), most
