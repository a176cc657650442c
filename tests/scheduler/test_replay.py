from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from deepinfer.scheduler import LATENCY, ShadowDevice
from deepinfer.scheduler.shadow import DrafterSpec
from deepinfer.step import StepPlan
from tests.scheduler.driver import END, LIMITS, VOCABULARY, Drive, request


@given(st.integers(0, 3), st.integers(0, 99))
def test_a_trace_of_plans_gives_equal_results_on_a_fresh_device(most, seed):
    limits = replace(LIMITS, num_pages=14, max_draft=most)
    drafter = DrafterSpec(70, ragged=True, seed=seed)
    drive = Drive(limits, LATENCY, drafter=drafter)
    for name in range(8):
        prompt = [(seed + name * i) % VOCABULARY for i in range(1 + (seed + name * 7) % 20)]
        drive.add(request(name, prompt, 12, stops=(END,)))
    drive.run()
    trace = [plan.to_json() for plan in drive.plans]
    device = ShadowDevice(limits, drafter=drafter, vocabulary=VOCABULARY)
    for line, result in zip(trace, drive.results, strict=True):
        plan = StepPlan.from_json(line)
        device.forward(plan)
        device.sample(plan.number)
        assert device.collect(plan.number).equal(result)
