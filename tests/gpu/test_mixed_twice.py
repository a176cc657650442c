"""Mixed requests, many of them drawn, in the released formats: the same bits twice."""

import pytest

from deepinfer.nano.build import nano_directory
from tests.gpu.mixed import COUNT, asked, served, unlike

pytestmark = pytest.mark.gpu


def test_drawn_requests_have_the_same_bits_twice_and_directly(gpu, tmp_path_factory):
    nano = nano_directory(tmp_path_factory.mktemp("nano"))
    options = {"numerics": "checkpoint", "speculative_config": {"num_speculative_tokens": 3}}
    requests = asked(COUNT // 4, drawn=True)
    first, _ = served(nano, requests, **options)
    some = requests[: COUNT // 12]
    again, _ = served(nano, some, **options)
    assert unlike(first[: len(some)], again) == []
    direct, _ = served(nano, some, enforce_eager=True, async_scheduling=False, **options)
    assert unlike(first[: len(some)], direct) == []
