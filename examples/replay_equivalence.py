"""Bounded replay, compared bit by bit: what it computes for fewer rows is what it would for all.

`mask` computes all prompt rows and hides those that `compact` leaves out; `exact` leaves out only
rows that nothing later reads, so it must equal `off`. Run it with
`python examples/replay_equivalence.py [MODEL] --length 1000`; exit code 1 if a bit differs.
"""

import argparse
import sys

from deepinfer import LLM, SamplingParams

PAIRS = (("mask", "compact"), ("off", "exact"))


def answers(model: str, replay: str, prompts: list[list[int]], tokens: int) -> list[object]:
    """Generated ids and the log-probability of each, as they come."""
    params = SamplingParams(temperature=0, max_tokens=tokens, logprobs=0, ignore_eos=True)
    options = {"decoder_replay": replay, "enable_prefix_caching": False}
    with LLM(model, max_model_len=len(prompts[-1]) + tokens, max_num_seqs=4, **options) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    return [
        (item.token_ids, [sorted(entry.items()) for entry in item.logprobs or ()])
        for output in outputs
        for item in output.outputs
    ]


def main() -> int:
    """Compare both pairs; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--length", type=int, default=1000, help="tokens of the longest prompt")
    parser.add_argument("--tokens", type=int, default=8, help="tokens to generate")
    args = parser.parse_args()
    lengths = [args.length // 4, args.length // 2, args.length]
    prompts = [[3 + (i * i + n) % 250 for i in range(n)] for n in lengths]
    found = {
        name: answers(args.model, name, prompts, args.tokens) for pair in PAIRS for name in pair
    }
    for first, second in PAIRS:
        same = found[first] == found[second]
        sys.stdout.write(f"{first} and {second}: {'equal' if same else 'DIFFERENT'}\n")
    apart = found["compact"] != found["exact"]
    sys.stdout.write(f"compact and exact: {'different, as expected' if apart else 'equal'}\n")
    return 0 if all(found[first] == found[second] for first, second in PAIRS) else 1


if __name__ == "__main__":
    sys.exit(main())
