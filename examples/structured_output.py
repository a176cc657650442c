"""An invoice read into JSON that satisfies a schema, a choice, and a call that must come.

Run it with `python examples/structured_output.py [MODEL [MOST_TOKENS]]`.
"""

import json
import sys
from pathlib import Path

from deepinfer import LLM, SamplingParams, StructuredOutputsParams

SCHEMA = json.loads(Path(__file__).with_name("invoice.schema.json").read_text(encoding="utf-8"))
INVOICE = """Harbour Tools Ltd, invoice No. 2024-117 of 3 May 2024, in EUR
desk lamp | 2 | 19.50 | 39.00
Subtotal 39.00, tax 7.41, total 46.41"""
TOOL = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Books an amount.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"account": {"type": "string", "enum": ["tools", "food", "rent"]}},
            "required": ["account"],
            "additionalProperties": False,
        },
    },
}


def main() -> None:
    """Ask for each, and say what came."""
    model = sys.argv[1] if len(sys.argv) > 1 else "nano"
    most = int(sys.argv[2]) if len(sys.argv) > 2 else 1500
    limits = SamplingParams(max_tokens=most, temperature=0.7, seed=1)
    with LLM(model, max_model_len=4000, speculative_config={"num_speculative_tokens": 3}) as llm:
        asked = [{"role": "user", "content": f"Read this invoice into JSON.\n\n{INVOICE}"}]
        schema = {"type": "json_schema", "json_schema": {"name": "invoice", "schema": SCHEMA}}
        (read,) = llm.chat(asked, limits, response_format=schema)
        answer = read.outputs[0]
        print("after reasoning:", answer.structured, f"({answer.finish_reason})")
        choice = StructuredOutputsParams(choice=["goods", "services", "both"])
        wanted = SamplingParams(max_tokens=10, structured_outputs=choice, temperature=0)
        (chosen,) = llm.generate(f"{INVOICE}\n\nThe invoice is about", wanted)
        print("one of three:", chosen.outputs[0].text)
        plain = {"type": "disabled"}
        (called,) = llm.chat(asked, limits, tools=[TOOL], tool_choice="required", thinking=plain)
        for call in (called.outputs[0].message or {}).get("tool_calls") or ():
            print("a call:", call["function"])


if __name__ == "__main__":
    main()
