"""Scores of answers: question sets, scorers, the run over a back-end, and what it costs."""
