"""Which positions to compute next. Pure: no torch, no clock, no randomness."""

from deepinfer.scheduler.admission import row_sampling
from deepinfer.scheduler.hashes import next_token
from deepinfer.scheduler.limits import (
    LATENCY,
    POLICIES,
    THROUGHPUT,
    Caching,
    Drafting,
    Limits,
    Policy,
)
from deepinfer.scheduler.report import Progress, Snapshot
from deepinfer.scheduler.scheduler import Scheduler
from deepinfer.scheduler.shadow import ShadowDevice

__all__ = [
    "LATENCY",
    "POLICIES",
    "THROUGHPUT",
    "Caching",
    "Drafting",
    "Limits",
    "Policy",
    "Progress",
    "Scheduler",
    "ShadowDevice",
    "Snapshot",
    "next_token",
    "row_sampling",
]
