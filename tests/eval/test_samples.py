"""Sample files: nothing is lost, nothing is asked twice, nothing is mixed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.errors import ConfigError
from deepinfer.eval.question import Call, Question, Reply, Sample
from deepinfer.eval.samples import SampleFile, read

SETTINGS = {"task": "t", "model": "m", "temperature": 0.5}
texts = st.text(max_size=10)
counts = st.none() | st.integers(0, 10**6)
replies = st.builds(
    Reply,
    content=texts,
    reasoning=texts,
    calls=st.lists(st.builds(Call, texts, texts), max_size=2).map(tuple),
    finish_reason=st.sampled_from([None, "stop", "length"]),
    error=st.none() | texts,
    prompt_tokens=counts,
    cached_tokens=counts,
    completion_tokens=counts,
    seconds=st.floats(0, 1e6),
    attempts=st.integers(1, 9),
)


def question(key="a", sample=0, text="q", skipped=None):
    return Question(key, [{"role": "user", "content": text}], 1, sample, skipped=skipped)


def sample_of(asked: Question, reply: Reply, session: int = 0) -> Sample:
    return Sample(
        key=asked.key,
        sample=asked.sample,
        digest=asked.digest(),
        target=asked.target,
        facts=asked.facts,
        seed=7,
        reply=reply,
        session=session,
        at=1.0,
    )


@given(st.lists(replies, max_size=4))
def test_what_is_written_is_read_again(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("s") / "x.jsonl"
    file = SampleFile(path, SETTINGS, resume=False)
    file.begin(1, 4, {"z": "needs an image"}, 2)
    samples = [sample_of(question(str(i)), reply) for i, reply in enumerate(written)]
    for sample in samples:
        file.add(sample)
    file.close()
    history = read(path)
    assert list(history.samples) == samples
    assert history.sessions[0].settings == SETTINGS
    assert (history.sessions[0].devices, history.sessions[0].skipped) == (
        2,
        {"z": "needs an image"},
    )


def test_half_a_surrogate_pair_in_a_reply_survives(tmp_path):
    file = SampleFile(tmp_path / "x", SETTINGS, resume=False)
    file.begin(1, 1, {}, None)
    sample = sample_of(question(), Reply(content="a\ud800b"))
    file.add(sample)
    file.close()
    assert read(tmp_path / "x").samples == [sample]


def test_a_file_cut_at_any_byte_is_taken_up_again(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    asked = [question(str(i), text="字") for i in range(3)]
    file = SampleFile(whole, SETTINGS, resume=False)
    file.begin(1, 3, {}, 1)
    for item in asked:
        file.add(sample_of(item, Reply(content="答")))
    file.close()
    data = whole.read_bytes()
    ends = [place + near for place, byte in enumerate(data) if byte == 10 for near in (0, 1, 2)]
    for size in sorted({*range(0, len(data), 29), *ends, len(data)} - {len(data) + 1}):
        cut.write_bytes(data[:size])
        file = SampleFile(cut, SETTINGS, resume=True)
        missing = file.missing(asked)
        assert missing == asked[max(data[:size].count(b"\n") - 1, 0) :]
        file.begin(1, 3, {}, 1)
        for item in missing:
            file.add(sample_of(item, Reply(content="答"), file.session))
        file.close()
        history = read(cut)
        assert sorted(key for key, _ in history.latest()) == ["0", "1", "2"]
        assert len(history.samples) == 3


def test_errors_are_asked_again_and_the_last_reply_counts(tmp_path):
    file = SampleFile(tmp_path / "x", SETTINGS, resume=False)
    file.begin(1, 2, {}, 1)
    first, second = question("a"), question("b")
    file.add(sample_of(first, Reply(error="no response")))
    file.add(sample_of(second, Reply(content="b")))
    file.close()
    file = SampleFile(tmp_path / "x", SETTINGS, resume=True)
    skipped = question("c", skipped="needs an image")
    assert file.missing([first, second, skipped]) == [first]
    file.begin(1, 2, {}, 1)
    file.add(sample_of(first, Reply(content="a"), file.session))
    file.close()
    history = read(tmp_path / "x")
    assert [s.number for s in history.sessions] == [0, 1]
    assert len(history.samples) == 3
    assert history.latest()["a", 0].reply.content == "a"


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    SampleFile(tmp_path / "x", SETTINGS, resume=False).close()
    with pytest.raises(ConfigError, match="--resume"):
        SampleFile(tmp_path / "x", SETTINGS, resume=False)


def test_samples_of_other_settings_or_questions_are_not_mixed(tmp_path):
    file = SampleFile(tmp_path / "x", SETTINGS, resume=False)
    file.begin(1, 1, {}, 1)
    file.add(sample_of(question(), Reply(content="a")))
    file.close()
    with pytest.raises(ConfigError, match=r"temperature was 0\.5 and is 1\.0"):
        SampleFile(tmp_path / "x", SETTINGS | {"temperature": 1.0}, resume=True)
    with pytest.raises(ConfigError, match="more was None and is 1"):
        SampleFile(tmp_path / "x", SETTINGS | {"more": 1}, resume=True)
    file = SampleFile(tmp_path / "x", SETTINGS, resume=True)
    with pytest.raises(ConfigError, match="problem a, sample 0 was another question"):
        file.missing([question(text="another")])
    file.close()


@pytest.mark.parametrize(
    "content", ["x\n", "{}\n", '{"record": "sample"}\n', '{"record": "session"}\n', "[]\n", ""]
)
def test_a_file_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "x").write_text(content)
    with pytest.raises(ConfigError, match="sample"):
        read(tmp_path / "x")


def test_a_file_of_something_else_is_not_damaged_by_resuming(tmp_path):
    (tmp_path / "x").write_text("precious\nnotes without a last newline")
    with pytest.raises(ConfigError):
        SampleFile(tmp_path / "x", SETTINGS, resume=True)
    assert (tmp_path / "x").read_text() == "precious\nnotes without a last newline"


def test_places_that_cannot_be_read_or_written_are_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        read(tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot write"):
        SampleFile(tmp_path / "none" / "x", SETTINGS, resume=False)


def test_the_digest_covers_what_is_shown_and_expected():
    plain = question()
    changed = [
        question(text="other"),
        Question("a", plain.messages, 2),
        Question("a", plain.messages, 1, tools=[{"type": "function"}]),
        Question("a", plain.messages, 1, schema={"type": "object"}),
    ]
    assert len({item.digest() for item in (plain, *changed)}) == 5
    assert question("b", 3).digest() == plain.digest()
    assert json.loads(json.dumps(sample_of(plain, Reply()).record()))["record"] == "sample"
