"""Calibration of synthetic heads whose confidences are off by known temperatures."""

import numpy as np
import pytest

from deepinfer.scheduler.calibration import Calibration, probability, temperatures

DEPTHS = 5


def head(generator, rows, off):
    """Confidences [rows, depths] that are `off` times the true logits, and accepted drafts."""
    true = generator.normal(1.0, 1.5, (rows, DEPTHS))
    right = generator.random((rows, DEPTHS)) < 1 / (1 + np.exp(-true))
    return (true * off).astype(np.float32), np.cumprod(right, axis=1).sum(axis=1).astype(np.int32)


def error(probabilities, happened, counted):
    """Expected calibration error over twenty classes, computed one class at a time."""
    classes = np.minimum(probabilities * 20, 19).astype(int)
    total = 0.0
    for place in range(20):
        inside = counted & (classes == place)
        total += abs(probabilities[inside].sum() - happened[inside].sum())
    return total / counted.sum()


def trained(off, trials, seed, start=1.0):
    calibration, generator = Calibration(DEPTHS, temperatures(DEPTHS, start)), None
    generator = np.random.default_rng(seed)
    while calibration.trials.sum() < trials:
        logits, accepted = head(generator, 16, off)
        verified = generator.integers(0, DEPTHS + 1, 16).astype(np.int32)
        calibration.add(logits, verified, np.minimum(accepted, verified))
    calibration.fit()
    return calibration


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("off", [5.0, 2.5, 0.4, (3.0, 2.0, 1.5, 1.0, 0.7)], ids=str)
def test_after_2000_trials_a_miscalibrated_head_is_wrong_by_at_most_three_percent(off, seed):
    calibration = trained(off, 2000, seed)
    logits, accepted = head(np.random.default_rng(1000 + seed), 50_000, off)
    depth = np.arange(DEPTHS)
    tried = depth < np.minimum(accepted + 1, DEPTHS)[:, None]
    right = depth < accepted[:, None]
    one = np.ones(DEPTHS)
    raw, told = (probability(logits, t) for t in (one, calibration.temperature))
    assert error(raw, right, tried) > 0.07
    assert error(told, right, tried) <= 0.03
    survival = np.cumprod(told, axis=1)
    assert error(survival, right, np.ones_like(right)) <= 0.03


def test_the_reported_error_is_that_of_the_counted_trials():
    calibration = Calibration(DEPTHS, temperatures(DEPTHS, 1.0))
    assert calibration.error() == 0
    logits, accepted = head(np.random.default_rng(3), 20_000, 2.5)
    calibration.add(logits, np.full(20_000, DEPTHS, np.int32), accepted)
    depth = np.arange(DEPTHS)
    tried = depth < np.minimum(accepted + 1, DEPTHS)[:, None]
    true = error(probability(logits, np.ones(DEPTHS)), depth < accepted[:, None], tried)
    assert abs(calibration.error() - true) < 0.01
    assert calibration.fit()
    assert calibration.error() < 0.015


def test_without_trials_the_start_stays_and_few_trials_move_it_little():
    start = temperatures(DEPTHS, (2.0, 3.0))
    assert start.tolist() == [2, 3, 3, 3, 3]
    calibration = Calibration(DEPTHS, start)
    assert not calibration.fit()
    assert calibration.temperature.tolist() == start.tolist()
    one = np.ones(1, np.int32)
    calibration.add(np.full((1, DEPTHS), 2, np.float32), one, one)
    calibration.fit()
    assert np.abs(np.log(calibration.temperature / start)).max() < 0.25


def test_a_draft_behind_a_wrong_one_is_no_trial_and_one_without_confidence_only_counts():
    calibration = Calibration(3, temperatures(3, 1.0))
    logits = np.array([[0, np.nan, 1], [2, 2, 2]], np.float32)
    calibration.add(logits, np.array([3, 3], np.int32), np.array([3, 0], np.int32))
    assert calibration.trials.tolist() == [2, 1, 1]
    assert calibration.right.tolist() == [1, 1, 1]
    assert calibration.rate().tolist() == [2 / 4, 2 / 3, 2 / 3]


def test_old_trials_fade():
    calibration = trained(4.0, 30_000, 5)
    before = calibration.temperature[0]
    generator = np.random.default_rng(6)
    for _ in range(40):
        logits, accepted = head(generator, 1024, 0.5)
        calibration.add(logits, np.full(1024, DEPTHS, np.int32), accepted)
        calibration.fit()
    assert before > 3
    assert calibration.temperature[0] < 0.7


@pytest.mark.parametrize("value", [-1e30, -40.0, -1e-30, 1e-30, 40.0, 1e30])
def test_extreme_confidences_are_probabilities(value):
    calibration = Calibration(1, temperatures(1, 1.0))
    one = np.ones(1, np.int32)
    for accepted in (one, 0 * one):
        calibration.add(np.full((1, 1), value, np.float32), one, accepted)
    calibration.fit()
    assert np.isfinite(calibration.temperature).all()
    assert 0 <= calibration.error() <= 1
    assert 0 <= probability(np.array([value]), calibration.temperature)[0] <= 1
