"""What somebody reads who gives a command something wrong: one line with the value and a remedy."""

import pytest

from deepinfer.cli import main

BENCH = ("bench", "decode", "--model", "nano-random", "--device", "cpu")
WRONG = [
    ((), "deepinfer: error: the following arguments are required: COMMAND; see deepinfer --help"),
    (("generate",), "generate: error: the following arguments are required: --model; see deepinfer "
     "generate --help"),
    (("generate", "--model", "x"), "one of the arguments --input --prompt is required; see"),
    (("generate", "--model", "x", "--temperature", "hot"), "--temperature: invalid float value: "),
    (("eval", "chess", "--model", "x"), "argument TASK: invalid choice: 'chess' (choose from"),
    (("ops", "--model", "nothere"), "model 'nothere': not found; give a checkpoint directory"),
    (("ops", "--device", "tpu"), "device 'tpu': use 'auto', 'cpu', 'cuda' or 'cuda:N'"),
    (("ops", "--op", "experts"), "--op experts: write OPERATION=IMPLEMENTATION"),
    (("ops", "--op", "experts=fast"), "cannot use 'fast' (no such implementation, there are: ref"),
    (("ops", "--op", "triton=experts"), "unknown operation(s) ['triton']; there are ['add_out"),
    (("bench", "everything"), "invalid choice: 'everything' (choose from 'cpu'"),
    (("bench", "decode"), "Use either --model or --slice"),
    ((*BENCH, "--length", "0"), "--length 0: use a number >= 1"),
    ((*BENCH, "--drafts", "-1"), "--drafts -1: use a number >= 0"),
    ((*BENCH, "--batch", "8,0"), "--batch 0: use a number >= 1"),
    ((*BENCH, "--batch", "some"), "--batch some: write integers with commas between them"),
    (("bench", "step", "--rows", "1;2"), "--rows 1;2: write integers with commas between them"),
    (("bench", "prefix", "--prompts", "0"), "--prompts 0: use a number >= 1"),
    (("bench", "shared", "--slice", "ep64", "--length", "9", "--uncached", "9"),
     "uncached 9: use 1 or more, less than the length, 9"),
    (("bench", "scheduler", "--assert", "none.json"), "none.json: not readable as JSON"),
    (("check", "invariance", "nano", "--batch", "0"), "--batch 0: use a number >= 1"),
    (("check", "invariance", "nano", "--drafts", "1,many"), "--drafts many: write integers with"),
    (("generate", "--model", "nano-random", "--device", "cpu", "--prompt", "a", "--max-model-len",
      "9999999"), "max_model_len 9999999: use at most 65536, the positions of the model"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "says"), WRONG, ids=[" ".join(a) or "-" for a, _ in WRONG])
def test_wrong_arguments_are_named_in_one_line_with_a_remedy(
    arguments, says, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    assert code == 2
    assert says in err
    assert len([line for line in err.splitlines() if not line.startswith("note: ")]) == 1
    assert out == ""
