"""Finds contradictions among the values of an `Arch`; what each check protects stands beside it.

Knows nothing of JSON: it sees numbers that already have the right types. Torch-free.
Source: `spec/model.md` 2.1, 6.2, 9; `spec/model-decisions.md` D32, D42, D59.
"""

from __future__ import annotations

from deepinfer.arch.spec import Arch, Draft, Engram


def contradictions(arch: Arch) -> list[str]:
    """Name the values of `arch` that are fine one by one but not together, one sentence each."""
    stages = 0 if arch.draft is None else arch.draft.stages
    entries = arch.num_hidden_layers + stages
    ratios = arch.compress_ratios
    if len(ratios) not in (entries, arch.num_hidden_layers):
        return [
            f"compress_ratios has {len(ratios)} entries; {arch.num_hidden_layers} layers and "
            f"{stages} draft stages need {entries}"
        ]
    problems = _size_problems(arch) + _source_problems(arch)
    if bad := sorted(set(ratios) - {0, 1, 2}):
        problems.append(f"compress_ratios: values {bad} are not supported, only 0, 1, 2")
    if any(ratios[arch.num_hidden_layers :]):
        problems.append("compress_ratios: draft stages have no compressed branch, use 0")
    if arch.engram is not None:
        problems += _engram_problems(arch, arch.engram)
    if arch.draft is not None:
        problems += _draft_problems(arch, arch.draft)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"):
        if getattr(arch, name) >= arch.vocab_size:
            problems.append(f"{name} {getattr(arch, name)} is not below vocab_size")
    return problems


def _size_problems(arch: Arch) -> list[str]:
    problems: list[str] = []
    heads, groups = arch.num_attention_heads, arch.o_groups
    if heads % groups:
        problems.append(f"num_attention_heads {heads} is not a multiple of o_groups {groups}")
    grouped = {
        "hidden_size": arch.hidden_size,
        "head_dim": arch.head_dim,
        "q_lora_rank": arch.q_lora_rank,
        "moe_intermediate_size": arch.moe_intermediate_size,
        "index_head_dim": arch.index_head_dim,
    }
    problems += [
        f"{name} {value} is not a multiple of 32 (scale groups)"
        for name, value in grouped.items()
        if value % 32
    ]
    if groups * arch.o_lora_rank % 32:
        problems.append(f"o_groups x o_lora_rank = {groups * arch.o_lora_rank}: no multiple of 32")
    rope = arch.qk_rope_head_dim
    if rope % 2 or rope > min(arch.head_dim, arch.index_head_dim):
        problems.append(f"qk_rope_head_dim {rope}: odd, or wider than head_dim or index_head_dim")
    if arch.num_experts_per_tok > arch.n_routed_experts:
        problems.append("num_experts_per_tok exceeds n_routed_experts")
    return problems


def _source_problems(arch: Arch) -> list[str]:
    problems: list[str] = []
    kv, index = arch.kv_source_layer_ids, arch.index_source_layer_ids
    ratios = arch.compress_ratios[: arch.num_hidden_layers]
    compressed = [i for i, ratio in enumerate(ratios) if ratio]
    for name, sources in (("kv_source_layer_ids", kv), ("index_source_layer_ids", index)):
        if list(sources) != sorted(set(sources)):
            problems.append(f"{name} {list(sources)} is not ascending")
        if bad := [s for s in sources if s not in compressed]:
            problems.append(f"{name}: layers {bad} have no compressed branch")
        if compressed and (not sources or min(sources) > compressed[0]):
            problems.append(f"{name}: layer {compressed[0]} has no source at or below it")
    if problems:
        return problems
    if missing := [s for s in kv if s not in index]:
        problems.append(f"kv_source_layer_ids: layers {missing} own entries but do not select")
    problems += [
        f"layer {layer.index}: ratio differs from its source {layer.kv_source}"
        for layer in arch.layers
        if layer.kv_source is not None and ratios[layer.kv_source] != layer.ratio
    ]
    boundary = arch.boundary_layer
    if boundary is not None and (late := [s for s in kv if s > boundary]):
        problems.append(
            f"kv_source_layer_ids: layers {late} lie above layer {boundary}, where the "
            "decoder part begins; this is not supported"
        )  # D42
    if boundary is not None and any(r == 2 for r in ratios[boundary:]):
        problems.append("compress_ratios: a ratio-2 layer above the first ratio-1 layer")
    return problems + _candidate_problems(arch)


def _candidate_problems(arch: Arch) -> list[str]:
    source, reindex = (
        arch.candidate_source_layer_id,
        [layer.index for layer in arch.layers if layer.mode == "reindex"],
    )
    if source is None:
        return []
    problems: list[str] = []
    if source not in arch.kv_source_layer_ids or any(i < source for i in reindex):
        problems.append(f"candidate_source_layer_id {source} is no source below layers {reindex}")
    blocks, size = arch.candidate_topk_blocks, arch.candidate_block_size
    if (reach := blocks * size - (size - 1)) < arch.index_topk:
        problems.append(
            f"candidate_topk_blocks {blocks} x candidate_block_size {size} leave {reach} entries, "
            f"fewer than index_topk {arch.index_topk}"
        )
    return problems


def _engram_problems(arch: Arch, engram: Engram) -> list[str]:
    problems: list[str] = []
    if len(engram.layer_ids) != len(engram.num_embeddings):
        problems.append("engram_num_embeddings and engram_layer_ids differ in length")
    if any(layer >= arch.num_hidden_layers for layer in engram.layer_ids):
        problems.append(f"engram_layer_ids {list(engram.layer_ids)}: no such layer")
    if list(engram.layer_ids) != sorted(set(engram.layer_ids)):
        problems.append(f"engram_layer_ids {list(engram.layer_ids)} is not ascending")
    if engram.head_dim % 32:
        problems.append(f"engram_head_dim {engram.head_dim} is not a multiple of 32")
    if engram.pad_token_id >= arch.vocab_size:
        problems.append(f"engram_pad_token_id {engram.pad_token_id} is not below vocab_size")
    return problems


def _draft_problems(arch: Arch, draft: Draft) -> list[str]:
    problems: list[str] = []
    if not draft.target_layer_ids or max(draft.target_layer_ids) >= arch.num_hidden_layers:
        problems.append(f"dspark_target_layer_ids {list(draft.target_layer_ids)}: no such layer")
    if draft.noise_token_id >= arch.vocab_size:
        problems.append(f"dspark_noise_token_id {draft.noise_token_id} is not below vocab_size")
    if draft.num_experts_per_tok > draft.n_routed_experts:
        problems.append("dspark_num_experts_per_tok exceeds dspark_n_routed_experts")
    return problems
