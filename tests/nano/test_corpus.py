import pytest

from deepinfer.nano.corpus import corpus


def test_the_same_seed_gives_the_same_text_and_another_one_does_not():
    assert corpus(3) == corpus(3)
    assert corpus(3) != corpus(4)


@pytest.mark.parametrize("seed", [0, 41])
def test_every_kind_of_text_occurs(seed):
    text = corpus(seed)
    assert 30_000 < len(text.encode()) < 65_000
    for piece in ["Question: ", "。", "def ", " = ", '{"name": ', "| name | value |", "é", "\n\n"]:
        assert piece in text


def test_arithmetic_lines_are_true():
    lines = [line for line in corpus(0).splitlines() if " = " in line and line[0].isdigit()]
    assert len(lines) > 400
    for line in lines:
        a, sign, b, _, result = line.split()
        a, b = int(a), int(b)
        assert int(result) == {"+": a + b, "-": a - b, "*": a * b}[sign]
