"""`deepinfer recipe`: API requests to prompts, and answers of the model to API responses."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer.cli.common import Subparsers, reader
from deepinfer.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer.recipe import (
        ConversationRequest,
        InferenceChunk,
        RenderedPrompt,
        StreamProcessor,
        Tokenizer,
    )

PROTOCOLS = ("chat", "messages", "responses")
VERSIONS = ("v4", "v4.1")
FINISHES = {"stop": "Stop", "length": "Length", "content_filter": "ContentFilter"}


def add(subparsers: Subparsers) -> None:
    """Declare the command and its three verbs."""
    parser = subparsers.add_parser(
        "recipe",
        help="API requests to prompts, answers to API responses",
        description="The codec by hand. Every verb reads one JSON object.",
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    encode = verbs.add_parser(
        "encode",
        help="a request as prompt and options",
        description="Read a request body; print prompt, token ids and options as JSON.",
    )
    inspect = verbs.add_parser(
        "inspect",
        help="a prompt for the eye",
        description="Read a request body; print every special token and every stretch of text of "
        "its prompt on a line of its own, with ids.",
    )
    decode = verbs.add_parser(
        "decode",
        help="an answer of the model as response",
        description='Read {"request": body, "text": answer} or {"request": body, "token_ids": '
        "[ids]}; print the response, or with --stream its events.",
    )
    for verb, run in ((encode, _encode), (inspect, _inspect), (decode, _decode)):
        _add_shared(verb)
        verb.set_defaults(run=run)
    inspect.add_argument(
        "--images",
        action="store_true",
        help="get the images too and print their sizes and tokens (needs Pillow; URLs are fetched)",
    )
    decode.add_argument("--stream", action="store_true", help="print server-sent events")
    decode.add_argument("--finish", choices=FINISHES, default="stop", help="why the answer ended")
    decode.add_argument("--id", default="recipe", help="id of the response")
    decode.add_argument(
        "--lenient", action="store_true", help="repair malformed tool calls of known kinds"
    )


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", nargs="?", default="-", help='JSON file; "-" (default) is stdin')
    parser.add_argument(
        "--protocol", choices=PROTOCOLS, default="chat", help="of the request (chat)"
    )
    parser.add_argument(
        "--version",
        choices=VERSIONS,
        help="prompt version; default: by the model name in the request",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json or a checkpoint directory, for token ids",
    )


def _encode(args: argparse.Namespace) -> int:
    converted = _convert(args)
    prompt = _render(converted)
    tokenizer = _tokenizer(args, converted)
    inference, parsing = converted.inference_options, converted.parsing_options
    constraint = inference.output_constraint
    stage = parsing.thinking_initial_stage
    record: dict[str, Any] = {
        "prompt": prompt.prompt,
        "special_ranges": prompt.special_ranges,
        "images": [{"kind": i.kind, "path": i.path} for i in prompt.image_sources],
        "inference": {
            "max_tokens": inference.max_tokens,
            "temperature": inference.temperature,
            "top_p": inference.top_p,
            "logprobs": inference.logprobs,
            "top_logprobs": inference.top_logprobs,
            "seed": inference.seed,
            "constraint": constraint and {"kind": constraint.kind, "schema": constraint.schema},
        },
        "parsing": {
            "parse_tool_calls": parsing.parse_tool_calls,
            "starts_in_tool_calls": parsing.starts_in_tool_calls,
            "parse_json_output": parsing.parse_json_output,
            "thinking_initial_stage": stage and stage.name,
            "stop_sequences": parsing.stop_sequences,
        },
        "stream": converted.stream,
    }
    if tokenizer is not None:
        record["token_ids"] = tokenizer.encode_prompt(prompt)
    print(json.dumps(record, ensure_ascii=False))
    return 0


def _inspect(args: argparse.Namespace) -> int:
    converted = _convert(args)
    prompt = _render(converted)
    tokenizer = _tokenizer(args, converted)
    pieces = prompt.pieces()
    ids = [None] * len(pieces) if tokenizer is None else tokenizer.encode_pieces(prompt)
    for (text, is_special), of_piece in zip(pieces, ids, strict=True):
        kind = "special" if is_special else "text   "
        shown = "" if of_piece is None else f"  {of_piece}"
        print(f"{kind} {json.dumps(text, ensure_ascii=False)}{shown}")
    if args.images:
        _print_images(prompt)
    count = sum(len(of_piece or ()) for of_piece in ids)
    tokens = "" if tokenizer is None else f", {count} tokens (an image counts as one)"
    print(
        f"{len(prompt.prompt)} characters, {len(prompt.special_ranges)} special tokens, "
        f"{len(prompt.image_sources)} images{tokens}",
        file=sys.stderr,
    )
    return 0


def _print_images(prompt: RenderedPrompt) -> None:
    from deepinfer import recipe

    resolver = recipe.ImageResolver(recipe.ReqwestImageFetcher(), recipe.OpenCvImagePreprocessor())
    sources = prompt.image_sources
    found = resolver.resolve(sources, recipe.ImageQuota())
    for source, image in zip(sources, found.images, strict=True):
        tokens = 1 + recipe.MultiModalData([image]).image_token_adjustment()
        print(f"image   {source.path}  {image.width} x {image.height} pixels, {tokens} tokens")


def _decode(args: argparse.Namespace) -> int:
    from deepinfer import recipe

    given = _read_object(args.input)
    body = given.get("request")
    if not isinstance(body, dict) or ("text" in given) == ("token_ids" in given):
        raise ConfigError('decode reads {"request": {...}} with either "text" or "token_ids"')
    if "text" in given:
        answer = recipe.InferenceChunk.text(given["text"])
    else:
        answer = recipe.InferenceChunk.tokens(given["token_ids"])
    end = recipe.InferenceChunk.finish(recipe.InferenceFinishReason[FINISHES[args.finish]])
    _answer(args, body, [answer, end])
    return 0


def _answer(args: argparse.Namespace, body: dict[str, Any], chunks: list[InferenceChunk]) -> None:
    from deepinfer import recipe

    request = _request(args.protocol, body)
    model = request.model
    converted = request.convert(_options(args, model))
    generator = request.chunk_generator(converted, args.id, model)
    converted.parsing_options.lenient = args.lenient
    tokenizer = _tokenizer(args, converted)
    count = 0 if tokenizer is None else len(tokenizer.encode_prompt(_render(converted)))
    usage = recipe.PromptUsage(prompt_tokens=count)
    processor = recipe.StreamProcessor(generator, converted.parsing_options, tokenizer)
    response = _response(args.protocol, args.id, model, count)
    _print(args, processor, response, [recipe.InferenceChunk.ready(prompt_usage=usage), *chunks])


def _response(protocol: str, id: str, model: str, prompt_tokens: int) -> Any:
    from deepinfer import recipe

    return {
        "chat": recipe.ChatCompletionResponse,
        "messages": recipe.MessagesResponse,
        "responses": recipe.ResponsesResponse,
    }[protocol](id, model, int(time.time()), prompt_tokens, 0)


def _print(
    args: argparse.Namespace,
    processor: StreamProcessor,
    response: Any,
    chunks: list[InferenceChunk],
) -> None:
    from deepinfer.recipe.events import sse_done, sse_frame

    for chunk in chunks:
        for event in () if processor.finished else processor.push(chunk):
            if args.stream:
                print(sse_frame(event, response.sse_event_name(event)), end="")
            else:
                response.accumulate(event)
    if args.stream:
        print(sse_done(response.sse_done_data()), end="")
    else:
        print(response.to_json())


def _convert(args: argparse.Namespace) -> ConversationRequest:
    request = _request(args.protocol, _read(args.input))
    return request.convert(_options(args, request.model))


def _request(protocol: str, body: str | dict[str, Any]) -> Any:
    from deepinfer import recipe

    return {
        "chat": recipe.ChatCompletionRequest,
        "messages": recipe.MessagesRequest,
        "responses": recipe.ResponsesRequest,
    }[protocol](body)


def _options(args: argparse.Namespace, model: str) -> Any:
    from deepinfer.recipe import ConversionOptions, ModelVersion

    options = ConversionOptions()
    if args.version is None:
        return options
    version = ModelVersion.DeepseekV4Pro if args.version == "v4" else ModelVersion.DeepseekV41Flash
    return options.with_model_alias(model, version)


def _render(converted: ConversationRequest) -> RenderedPrompt:
    from deepinfer.recipe import DeepseekV4Encoding, DeepseekV41Encoding, ModelVersion

    is_v4 = converted.model_version is ModelVersion.DeepseekV4Pro
    encoding = DeepseekV4Encoding() if is_v4 else DeepseekV41Encoding()
    return encoding.render_conversation(converted.conversation)


def _tokenizer(args: argparse.Namespace, converted: ConversationRequest) -> Tokenizer | None:
    from deepinfer.recipe import ModelVersion, Tokenizer

    if args.tokenizer is None:
        return None
    is_directory = Path(args.tokenizer).is_dir()
    load = Tokenizer.from_pretrained if is_directory else Tokenizer.from_file
    tokenizer = load(args.tokenizer)
    is_v4 = converted.model_version is ModelVersion.DeepseekV4Pro
    return tokenizer if is_v4 else tokenizer.for_v41()


def _read(name: str) -> str:
    with reader(name) as file:
        return file.read()


def _read_object(name: str) -> dict[str, Any]:
    try:
        found = json.loads(_read(name))
    except ValueError as error:
        raise ConfigError(f"{name} holds no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{name} holds no JSON object")
    return found
