"""Figures that a random run does not give: much of one thing, counted or timed."""
