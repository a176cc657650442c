"""Serving without a model: the real planner over counted lengths and a cost a step."""
