import gc
from pathlib import Path

import pytest

from deepinfer.scheduler import THROUGHPUT, Limits, Scheduler, ShadowDevice
from tests.scheduler.driver import request


def resident_kib():
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_hundred_thousand_requests_leave_no_memory_behind():
    limits = Limits(
        num_pages=64,
        num_slots=36,
        max_model_len=64,
        max_num_batched_tokens=256,
        max_num_seqs=32,
        max_draft=2,
        page_tokens=8,
    )
    scheduler, device = Scheduler(limits, THROUGHPUT), ShadowDevice(limits)
    added = ended = early = 0
    uncollected = []
    while ended < 100_000:
        while added < 100_000 and added - ended < 64:
            scheduler.add(request(added, [added % 99] * (1 + added % 12), 1 + added % 5))
            added += 1
        if added % 17 == 0:
            scheduler.abort(str(added - 5))
        plan = scheduler.plan(0.0)
        if plan is not None:
            device.forward(plan)
            device.sample(plan.number)
            uncollected.append(plan.number)
        if uncollected and (plan is None or len(uncollected) == 2):
            news = scheduler.apply(device.collect(uncollected.pop(0)), 0.0)
        else:
            news = scheduler.take_reports()
        ended += sum(item.finish_reason is not None for item in news)
        if not early and ended >= 10_000:
            early = resident_kib()
    while uncollected:
        scheduler.apply(device.collect(uncollected.pop(0)), 0.0)
    assert scheduler.idle
    assert scheduler.check() == []
    assert resident_kib() <= early * 1.05
