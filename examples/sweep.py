"""Throughput over rows at a time and drafts a step, as a table and as JSON lines.

Run it with `python examples/sweep.py [MODEL] --rows 1,4,16 --drafts 0,3`. The tokens are the same
in every cell; only time differs.
"""

import argparse
import json
import sys
import time

from deepinfer import LLM, SamplingParams

PROMPT = "What is {} + {}? Reply with the number only."


def measure(model: str, rows: int, drafts: int, tokens: int) -> dict[str, object]:
    """One cell: a warm-up, then `rows` conversations at a time, `tokens` answered in each."""
    talks = [[{"role": "user", "content": PROMPT.format(20 + i, 77 - i)}] for i in range(rows)]
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    config = {"num_speculative_tokens": drafts, "policy": "fixed"}
    with LLM(model, max_num_seqs=rows, max_model_len=1024, speculative_config=config) as llm:
        llm.chat(talks[:1], params, use_tqdm=False)
        clock = time.perf_counter()
        outputs = llm.chat(talks, params, use_tqdm=False)
        seconds = time.perf_counter() - clock
        accepted = llm.get_metrics()["mean_accepted_length"]
    ids = [output.outputs[0].token_ids for output in outputs]
    return {
        "rows": rows,
        "drafts": drafts,
        "tokens_per_s": round(rows * tokens / seconds, 1),
        "accepted_length": round(accepted, 2),
        "first_ids": ids[0],
    }


def main() -> None:
    """Measure every cell; a cell whose tokens differ ends the sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--rows", default="1,4,16")
    parser.add_argument("--drafts", default="0,3")
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args()
    seen = set()
    for drafts in map(int, args.drafts.split(",")):
        for rows in map(int, args.rows.split(",")):
            cell = measure(args.model, rows, drafts, args.tokens)
            seen.add(cell.pop("first_ids"))
            sys.stdout.write(json.dumps(cell) + "\n")
            if len(seen) > 1:
                sys.exit("another cell gave other tokens: please report this")


if __name__ == "__main__":
    main()
