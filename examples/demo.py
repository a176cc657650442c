"""Five prompts on the embedded model: what it says, how fast, and what drafts and cache saved.

Run it with `make demo`, or `python examples/demo.py [MODEL]`.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from deepinfer import LLM, SamplingParams
from deepinfer.eval.sets import needle

DRAFTS = {"num_speculative_tokens": 5, "policy": "fixed"}


def lookups(tokens: int) -> list[dict[str, object]]:
    """A long text with a question, then another one for the same text: the cache has it then."""
    (question,) = needle.questions(1, 7, [tokens], bytes_per_token=4.4)
    text, asked = str(question.messages[0]["content"]).rsplit("\n\n", 1)
    name = text.split("The number of the ")[1].split(" is ")[0]
    again = f"What is the number of the {name}? Reply with the number only."
    return [
        {
            "title": f"A look-up in {len(text):,} characters: {each}",
            "messages": [{"role": "user", "content": f"{text}\n\n{each}"}],
            "thinking": {"type": "disabled"},
        }
        for each in (asked, again)
    ]


def main() -> None:
    """Answer one prompt after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--context", type=int, default=3800, help="tokens of the look-up, about")
    args = parser.parse_args()
    params = SamplingParams(temperature=0, max_tokens=args.max_tokens)
    file = Path(__file__).with_name("demo.json")
    requests = json.loads(file.read_text(encoding="utf-8")) + lookups(args.context)
    with LLM(args.model, max_num_seqs=4, max_model_len=8192, speculative_config=DRAFTS) as llm:
        for request in requests:
            title, talk = request.pop("title"), request.pop("messages")
            asked = talk[-1]["content"]
            sys.stdout.write(f"\n== {title}\n{asked if len(asked) < 600 else '...'}\n")
            clock = time.perf_counter()
            (output,) = llm.chat([talk], params, use_tqdm=False, **request)
            seconds = time.perf_counter() - clock
            for item in output.outputs:
                message = item.message or {}
                for key in ("reasoning_content", "content", "tool_calls"):
                    if message.get(key):
                        shown = message[key] if key != "tool_calls" else json.dumps(message[key])
                        sys.stdout.write(f"-> {shown}\n")
                read, said = len(output.prompt_token_ids), len(item.token_ids)
                sys.stdout.write(
                    f"   {read} + {said} tokens in {seconds:.2f} s, {said / seconds:.1f} "
                    f"tokens/s; {output.num_cached_tokens} tokens from the cache\n"
                )
            if output.error:
                sys.stdout.write(f"-> {output.error}\n")
        counts = llm.get_metrics()
    sys.stdout.write(
        f"\naccepted length {counts['mean_accepted_length']:.2f}; "
        f"{counts['prompt_tokens_cached']} of {counts['prompt_tokens']} prompt tokens from the "
        "cache\n"
    )


if __name__ == "__main__":
    main()
