"""What must not happen inside a capture."""

import gc

import pytest

from deepinfer.device import _no_collection


@pytest.mark.parametrize("on", [True, False])
def test_nothing_is_collected_inside_a_capture_and_afterwards_all_is_as_before(on):
    before = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        with _no_collection():
            assert not gc.isenabled()
        assert gc.isenabled() == on
        with pytest.raises(ZeroDivisionError), _no_collection():
            raise ZeroDivisionError
        assert gc.isenabled() == on
    finally:
        (gc.enable if before else gc.disable)()
