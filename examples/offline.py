"""A batch of prompts and a batch of conversations on the offline engine.

Run it with `python examples/offline.py [MODEL]`; MODEL is `nano` or a checkpoint directory.
"""

import argparse
import sys

from deepinfer import LLM, SamplingParams

PROMPTS = ["Early in the morning", "Question: Is seven a prime number?\nAnswer:", "你好，"]
CONVERSATIONS = [
    [{"role": "user", "content": "What is 47 + 86? Reply with the number only."}],
    [{"role": "user", "content": "What is the capital of Norway?"}],
    [{"role": "user", "content": "一个星期有几天？"}],
]


def main(model: str, max_tokens: int) -> None:
    """Answer both batches; a prompt that cannot be served costs only its own answer."""
    greedy = SamplingParams(temperature=0, max_tokens=max_tokens)
    with LLM(model, max_model_len=2048, max_num_seqs=8) as llm:
        for output in llm.generate([*PROMPTS, ""], greedy, use_tqdm=False):
            said = output.error or output.outputs[0].text
            sys.stdout.write(f"{output.prompt!r} -> {said!r}\n")
        for output in llm.chat(CONVERSATIONS, greedy, use_tqdm=False):
            message = output.outputs[0].message or {}
            sys.stdout.write(f"{message.get('reasoning_content')!r} -> {message['content']!r}\n")
        counts = llm.get_metrics()
        sys.stdout.write(f"{counts['generated']} tokens in {counts['steps']} steps\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--max-tokens", type=int, default=128)
    args = parser.parse_args()
    main(args.model, args.max_tokens)
