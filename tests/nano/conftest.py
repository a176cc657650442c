import pytest

from deepinfer.nano.data import vocabulary


@pytest.fixture(scope="session")
def tokenizer_json():
    """Text of the trained model's tokenizer."""
    return vocabulary.tokenizer().to_str()
