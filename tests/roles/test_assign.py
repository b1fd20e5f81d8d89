"""Role assignment on steps built by hand: every kernel's role and cost, and every reason to abstain."""

import random
from typing import Any

import pytest

from diagnose.devices import resolve
from diagnose.roles.assign import assign_roles


def roles(trace: Any, ids: list[int]) -> list[str | None]:
    costs = trace.costs()
    return [costs[i]["role"] if i in costs else None for i in ids]


def abstains(trace: Any, model: Any, why: str, **options: Any) -> None:
    outcome = assign_roles(trace.store, model, **options)
    assert trace.costs() == {}
    assert outcome.coverage == 0 and outcome.kernels == 0
    assert any(why in message for _, severity, _, message in outcome.notes if severity == "warning"), (
        outcome.notes
    )


def test_dense_layers_get_roles_shapes_and_bytes(
    trace: Any, make: Any, model: Any, decode: dict[str, Any]
) -> None:
    layers = [make.dense(first=i == 0) for i in range(4)]
    ids = trace.step(0, make.step(layers), **decode)
    outcome = assign_roles(trace.store, model())
    assert (outcome.steps, outcome.aligned) == (1, 1)
    assert roles(trace, ids) == [
        "embedding",
        *(["norm", "qkv", "rope", "kv_write", "attention_decode", "attention_merge", "o", "norm_add", "gate_up", "activation", "down",
           "split_k_sum"]),
        *(["norm_add", "qkv", "rope", "kv_write", "attention_decode", "attention_merge", "o", "norm_add", "gate_up", "activation",
           "down", "split_k_sum"]) * 3,
        "norm_add", "head", None,
    ]  # fmt: skip
    costs = trace.costs()
    assert all(c["source"] == "role" for c in costs.values())
    qkv, attention, o, gate_up, down, head = (costs[ids[i]] for i in (2, 5, 7, 9, 11, -2))
    assert (qkv["m"], qkv["n"], qkv["k"]) == (8, 4096 + 2 * 1024, 4096)
    assert qkv["flops"] == 2 * 8 * 6144 * 4096
    assert qkv["bytes_min"] == 2 * (8 * 4096 + 4096 * 6144 + 8 * 6144)
    assert (o["n"], o["k"]) == (4096, 4096)
    assert (gate_up["n"], gate_up["k"]) == (2 * 14336, 4096)
    assert (down["n"], down["k"]) == (4096, 14336)
    assert (head["m"], head["n"], head["k"]) == (8, 128256, 4096)
    # keys and values of 8 KV heads, queries and results of 32 heads, bf16
    assert attention["bytes_min"] == 2 * 8 * 128 * 2 * 8000 + 2 * 8 * 32 * 128 * 2
    assert attention["flops"] == 4 * 32 * 128 * 8000
    assert attention["dtype"] == "bf16"
    kv = costs[ids[4]]
    assert kv["bytes_min"] == 2 * 8 * 8 * 128 * (2 + 2) + 8 * 8
    assert outcome.coverage == pytest.approx(
        (len(ids) - 1) / len(ids)
    )  # all take the same time; only argmax has no role


def test_unfused_projections(trace: Any, make: Any, model: Any, decode: dict[str, Any]) -> None:
    ids = trace.step(
        0, make.step([make.dense(i == 0, unfused=True, split=False) for i in range(4)]), **decode
    )
    assert assign_roles(trace.store, model()).aligned == 1
    costs = trace.costs()
    found = [(costs[i]["role"], costs[i]["n"], costs[i]["k"]) for i in ids if i in costs and costs[i]["m"]]
    assert found[:7] == [("q", 4096, 4096), ("k", 1024, 4096), ("v", 1024, 4096), ("o", 4096, 4096), ("gate", 14336, 4096),
                         ("up", 14336, 4096), ("down", 4096, 14336)]  # fmt: skip


def test_costs_already_known_stay(trace: Any, make: Any, model: Any, decode: dict[str, Any]) -> None:
    ids = trace.step(0, make.step([make.dense(i == 0) for i in range(4)]), **decode)
    known = {
        "kernel_id": ids[2],
        "flops": 1.0,
        "bytes_min": 2.0,
        "role": "gemm",
        "source": "shape",
        "m": 8,
        "n": 6144,
        "k": 4096,
    }
    trace.store.insert("cost", [known])
    assign_roles(trace.store, model())
    rows = trace.store.dicts("SELECT * FROM cost WHERE kernel_id = ?", ids[2])
    assert [(r["source"], r["flops"]) for r in rows] == [("shape", 1.0)]


def test_experts(trace: Any, make: Any, model: Any, decode: dict[str, Any]) -> None:
    mixtral = model(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)
    ids = trace.step(0, make.step([make.moe(i == 0) for i in range(4)]), **decode)
    outcome = assign_roles(trace.store, mixtral)
    assert outcome.aligned == 1
    assert roles(trace, ids)[8:16] == [
        "norm_add",
        "router",
        "moe_routing",
        "moe_sort",
        "moe_gate_up",
        "moe_activation",
        "moe_down",
        "moe_sum",
    ]
    costs = trace.costs()
    up = costs[ids[12]]
    touched = 8 * (1 - (1 - 2 / 8) ** 8)
    assert up["flops"] == 2 * (8 * 2) * 4096 * 2 * 14336
    assert up["bytes_min"] == pytest.approx(touched * 2 * 14336 * 4096 * 2 + 2 * (8 * 4096 + 16 * 2 * 14336))
    assert (
        up["bytes_low"]
        < 2 * 2 * 14336 * 4096 * 2
        < up["bytes_min"]
        < 8 * 2 * 14336 * 4096 * 2
        < up["bytes_high"]
    )
    assert any("uniform routing of 2 in 8" in n[3] for n in outcome.notes)


def test_windows_are_charged_by_their_layer(
    trace: Any, make: Any, model: Any, decode: dict[str, Any]
) -> None:
    windowed = model(model_type="gpt_oss", num_local_experts=8, num_experts_per_tok=2, sliding_window=128,
                     quantization_config={"quant_method": "mxfp4"})  # fmt: skip
    ids = trace.step(0, make.step([make.moe(i == 0) for i in range(4)]), **decode)
    assert assign_roles(trace.store, windowed).aligned == 1
    found = [c for i, c in trace.costs().items() if c["role"] == "attention_decode"]
    own = 2 * 8 * 32 * 128 * 2
    assert [c["bytes_min"] - own for c in found] == [
        2 * 8 * 128 * 2 * n for n in (8 * 128, 8000, 8 * 128, 8000)
    ]
    assert found[0]["bytes_low"] < 2 * 8 * 128 * 2 * (128 + 7)  # one long sequence, seven of a token
    # 4-bit weights with a byte of scale each 32
    up = next(c for c in trace.costs().values() if c["role"] == "moe_gate_up")
    one = 2 * 14336 * 4096 * (4 + 8 / 32) / 8 + 2 * 14336 * 2  # and its bias
    touched = 8 * (1 - 0.75**8)
    assert up["bytes_min"] == pytest.approx(touched * one + 2 * (8 * 4096 + 16 * 2 * 14336))
    del ids


def test_windows_correct_attention_that_only_the_step_priced(
    trace: Any, make: Any, model: Any, decode: dict[str, Any]
) -> None:
    """An operator outside the graph knows the step's context, not its layer's window."""
    windowed = model(model_type="gpt_oss", num_local_experts=8, num_experts_per_tok=2, sliding_window=128,
                     quantization_config={"quant_method": "mxfp4"})  # fmt: skip
    items = make.step([make.moe(i == 0) for i in range(4)])
    ids = trace.step(0, items, **decode)
    at = [i for i, item in zip(ids, items, strict=True) if item.what == "attention"]
    whole = 2 * 8 * 128 * 2 * 8000
    for i in at:
        trace.store.insert(
            "cost",
            [{"kernel_id": i, "flops": 1.0, "bytes_min": whole, "role": "attention", "source": "step"}],
        )
    assert assign_roles(trace.store, windowed).aligned == 1
    costs = trace.costs()
    assert [costs[i]["source"] for i in at] == ["role", "step", "role", "step"]
    assert costs[at[0]]["bytes_min"] < whole / 5
    assert trace.store.count("cost") == len(costs)


def test_shared_experts_on_another_stream(trace: Any, make: Any, model: Any, decode: dict[str, Any]) -> None:
    shared = model(model_type="qwen2_moe", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=1024,
                   shared_expert_intermediate_size=2048)  # fmt: skip
    ids = trace.step(0, make.step([make.moe(i == 0) for i in range(4)]), **decode)
    assert assign_roles(trace.store, shared).aligned == 1
    assert roles(trace, ids)[8:13] == ["norm_add", "router", "moe_routing", "moe_sort", "moe_gate_up"]


def test_ranks_share_a_layer(trace: Any, make: Any, model: Any, decode: dict[str, Any]) -> None:
    ids = trace.step(0, make.step([make.dense(i == 0, tp=True) for i in range(4)]), **decode)
    assert assign_roles(trace.store, model(), tp=4).aligned == 1
    costs = trace.costs()
    assert (costs[ids[2]]["n"], costs[ids[2]]["k"]) == (6144 // 4, 4096)
    assert costs[ids[8]]["role"] == "all_reduce"
    assert costs[ids[8]]["bytes_min"] == 2 * 8 * 4096 * 2
    attention = costs[ids[5]]
    assert attention["bytes_min"] == 2 * 2 * 128 * 2 * 8000 + 2 * 8 * 8 * 128 * 2


def test_rows_come_from_grids_where_the_graph_is_padded(
    trace: Any, make: Any, model: Any, decode: dict[str, Any]
) -> None:
    items = make.step([make.dense(i == 0) for i in range(4)])
    for item in items:
        if item.what in ("norm", "add_norm", "rope", "kv"):
            item.fields["grid"] = "[16,1,1]"
    ids = trace.step(0, items, **decode)
    assign_roles(trace.store, model())
    costs = trace.costs()
    assert costs[ids[2]]["m"] == 16
    assert costs[ids[5]]["flops"] == 4 * 32 * 128 * 8000  # attention works on the sequences that are there


def test_rows_from_grids_alone_leave_attention_open(trace: Any, make: Any, model: Any) -> None:
    items = make.step([make.dense(i == 0) for i in range(4)])
    for item in items:
        if item.what in ("norm", "add_norm", "rope"):
            item.fields["grid"] = "[16,1,1]"
    ids = trace.step(0, items, phase="other")
    assert assign_roles(trace.store, model()).aligned == 1
    costs = trace.costs()
    assert costs[ids[2]]["m"] == 16
    assert ids[5] not in costs and ids[-2] not in costs


def test_prefill_and_decode_kernels_of_a_mixed_step(trace: Any, make: Any, model: Any) -> None:
    prefill = "void flashinfer::BatchPrefillWithPagedKVCacheKernel<x>(p)"
    items = []
    for item in make.step([make.dense(i == 0) for i in range(4)]):
        items.append(make.item("attention", name=prefill) if item.what == "merge" else item)
    ids = trace.step(
        0, items, phase="mixed", sequences=9, prefill_sequences=1, decode_sequences=8, prefill_tokens=100, decode_tokens=8,
        context_tokens=8000, prefill_context_tokens=300, prefill_pairs=100 * 300 - 100 * 99 / 2,
    )  # fmt: skip
    assert assign_roles(trace.store, model()).aligned == 1
    costs = trace.costs()
    assert costs[ids[5]]["flops"] == 4 * 32 * 128 * 8000
    assert costs[ids[6]]["flops"] == 4 * 32 * 128 * (100 * 300 - 100 * 99 / 2)
    assert costs[ids[2]]["m"] == 108
    assert costs[ids[-2]]["m"] == 9  # the vocabulary projection: eight decodes and the prompt's last token


def test_other_tile_for_one_layer_and_stray_kernels_do_no_harm(
    trace: Any, make: Any, model: Any, decode: dict[str, Any]
) -> None:
    layers = [make.dense(i == 0) for i in range(4)]
    next(i for i in layers[2] if i.what == "gate_up").name = "nvjet_tst_256x8_64x12_2x1_v_bz_TNT"
    layers[1].insert(3, make.item("argmax"))
    trace.step(0, make.step(layers), **decode)
    assert assign_roles(trace.store, model()).aligned == 1
    assert sorted(c["role"] for c in trace.costs().values()).count("gate_up") == 4


def test_latent_attention_with_a_dense_layer_and_shared_experts(
    trace: Any, make: Any, model: Any, decode: dict[str, Any]
) -> None:
    deepseek = model(
        model_type="deepseek_v3", num_attention_heads=16, kv_lora_rank=512, q_lora_rank=1536, qk_rope_head_dim=64, qk_nope_head_dim=128,
        v_head_dim=128, n_routed_experts=64, num_experts_per_tok=4, moe_intermediate_size=1024, n_shared_experts=1,
        first_k_dense_replace=1,
    )  # fmt: skip
    names = {"qkv_a": "nvjet_tst_1x8", "q_b": "nvjet_tst_2x8", "k_up": "nvjet_tst_3x8", "v_up": "nvjet_tst_4x8", "sgu": "nvjet_tst_5x8",
             "sd": "nvjet_tst_6x8", "mla": "void flash_fwd_splitkv_mla_kernel<x>(y)", "cache": "void vllm::concat_and_cache_mla_kernel<x>(y)"}  # fmt: skip

    def items(*what: str) -> list[Any]:
        return [make.item(w, name=names.get(w, "")) for w in what]

    layers = []
    for i in range(4):
        pre = items(
            "norm" if i == 0 else "add_norm",
            "qkv_a",
            "norm",
            "q_b",
            "norm",
            "rope",
            "k_up",
            "cache",
            "mla",
            "v_up",
            "o",
            "add_norm",
        )
        post = (
            items("gate_up", "act", "down")
            if i == 0
            else items("sgu", "act", "sd", "router", "topk", "experts", "act", "experts", "moe_sum")
        )
        layers.append(pre + post)
    ids = trace.step(0, make.step(layers), **decode)
    outcome = assign_roles(trace.store, deepseek)
    assert outcome.aligned == 1, outcome.notes
    costs = trace.costs()
    attention = costs[ids[9]]
    assert attention["flops"] == 2 * 16 * 8000 * (2 * 512 + 64)
    assert attention["bytes_min"] == 8000 * (512 + 64) * 2 + 8 * 16 * (2 * 512 + 64) * 2
    assert roles(trace, ids)[1:17] == [
        "norm", "qkv_a", "q_a_norm", "q_b", "kv_a_norm", "rope", "k_up", "kv_write", "attention_decode", "v_up", "o", "norm_add",
        "gate_up", "activation", "down", "norm_add",
    ]  # fmt: skip
    second = roles(trace, ids)[16:]
    assert second[11:21] == ["norm_add", "shared_gate_up", "activation", "shared_down", "router", "moe_routing", "moe_gate_up", "moe_activation",
                             "moe_down", "moe_sum"]  # fmt: skip
    q_b, k_up = costs[ids[4]], costs[ids[7]]
    assert (q_b["m"], q_b["n"], q_b["k"]) == (8, 16 * 192, 1536)
    assert (k_up["batch"], k_up["m"], k_up["n"], k_up["k"]) == (16, 8, 512, 128)


# ---- abstaining


def test_shuffled_kernels(trace: Any, make: Any, model: Any, decode: dict[str, Any]) -> None:
    items = make.step([make.dense(i == 0) for i in range(4)])
    for seed in range(8):
        mixed = list(items)
        random.Random(seed).shuffle(mixed)
        trace.step(seed, mixed, **decode)
    abstains(trace, model(), "do not fit")


def test_products_shuffled_in_their_own_places(
    trace: Any, make: Any, model: Any, decode: dict[str, Any]
) -> None:
    """Counts and kinds all fit; only the names no longer tell the same story in each layer."""
    items = make.step([make.dense(i == 0) for i in range(4)])
    at = [i for i, item in enumerate(items) if item.what in ("qkv", "o", "gate_up", "down")]
    names = [items[i].text for i in at]
    random.Random(5).shuffle(names)
    for i, name in zip(at, names, strict=True):
        items[i].name = name
    trace.step(0, items, **decode)
    abstains(trace, model(), "of the other layers")


def test_products_that_never_repeat_by_name(
    trace: Any, make: Any, model: Any, decode: dict[str, Any]
) -> None:
    items = make.step([make.dense(i == 0) for i in range(4)])
    for number, item in enumerate(i for i in items if i.what in ("qkv", "o", "gate_up", "down")):
        item.name = f"nvjet_tst_64x8_64x16_{number}x1_v_bz_TNT"
    trace.step(0, items, **decode)
    abstains(trace, model(), "do not repeat by name")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_hidden_layers": 6}, "4 attention kernels"),
        ({"head_dim": 64, "num_attention_heads": 64}, "heads of 128"),
        ({"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}, "no expert kernels"),
        ({"model_type": "gpt2", "n_inner": 14336}, "has no gate"),
        ({"quantization_config": {"quant_method": "fp8"}}, "8-bit"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}, "4-bit"),
        ({"num_hidden_layers": 2}, "2 passes"),
        ({"quantization_config": {"quant_method": "something new"}}, "is not known here"),
    ],
)
def test_another_model(
    trace: Any, make: Any, model: Any, decode: dict[str, Any], changes: dict[str, Any], why: str
) -> None:
    trace.step(0, make.step([make.dense(i == 0) for i in range(4)]), **decode)
    abstains(trace, model(**changes), why)


def test_expert_kernels_in_a_dense_model(trace: Any, make: Any, model: Any, decode: dict[str, Any]) -> None:
    trace.step(0, make.step([make.moe(i == 0) for i in range(4)]), **decode)
    abstains(trace, model(), "have no experts")


def test_norms_that_the_model_does_not_have(
    trace: Any, make: Any, model: Any, decode: dict[str, Any]
) -> None:
    layers = [make.dense(i == 0) for i in range(4)]
    for layer in layers:
        layer[2:2] = [make.item("norm"), make.item("norm")]
    trace.step(0, make.step(layers), **decode)
    abstains(trace, model(), "norms between the input projection and attention")
    assert assign_roles(trace.store, model(model_type="qwen3")).aligned == 1


def test_ranks_need_collectives(trace: Any, make: Any, model: Any, decode: dict[str, Any]) -> None:
    trace.step(0, make.step([make.dense(i == 0) for i in range(4)]), **decode)
    abstains(trace, model(), "no collectives", tp=2)


def test_collectives_need_ranks(trace: Any, make: Any, model: Any, decode: dict[str, Any]) -> None:
    trace.step(0, make.step([make.dense(i == 0, tp=True) for i in range(4)]), **decode)
    abstains(trace, model(), "give the --tp")


def test_fewer_rows_than_tokens(trace: Any, make: Any, model: Any, decode: dict[str, Any]) -> None:
    items = make.step([make.dense(i == 0) for i in range(4)])
    for item in items:
        if item.what in ("add_norm", "rope"):
            item.fields["grid"] = "[4,1,1]"
    trace.step(0, items, **decode)
    abstains(trace, model(), "8 tokens, the kernels work on 4 rows")


def test_no_tokens(trace: Any, make: Any, model: Any) -> None:
    trace.step(0, make.step([make.dense(i == 0) for i in range(4)]), phase="other")
    abstains(trace, model(), "tokens are not known")


def test_a_recorded_shape_of_another_width_anywhere(
    trace: Any, make: Any, model: Any, decode: dict[str, Any]
) -> None:
    """One eager step with shapes of another model spoils the replays too."""
    trace.step(0, make.step([make.dense(i == 0) for i in range(4)]), **decode)
    ids = trace.step(1, [make.item("qkv")], **decode)
    trace.store.insert("cost", [{"kernel_id": ids[0], "flops": 1.0, "bytes_min": 1.0, "role": "gemm", "source": "shape", "m": 8,
                                 "n": 7680, "k": 5120}])  # fmt: skip
    outcome = assign_roles(trace.store, model())
    assert list(trace.costs()) == ids
    assert "5120 -> 7680" in outcome.notes[0][3]


def test_blocks_that_do_not_cover_the_result(
    trace: Any, make: Any, model: Any, decode: dict[str, Any]
) -> None:
    tile = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x32x64_MI16x16x1_SN_LDSB1_SK0_SKFTR0"
    for number, blocks in enumerate((6144 // 128, 5120 // 128)):
        layers = [make.dense(i == 0) for i in range(4)]
        for layer in layers:
            product = next(i for i in layer if i.what == "qkv")
            product.name, product.fields["grid"] = tile, f"[{blocks},1,1]"
        if number == 0:
            trace.step(0, make.step(layers), **decode)
            assert assign_roles(trace.store, model()).aligned == 1
            trace.store.con.execute("DELETE FROM cost; DELETE FROM kernel; DELETE FROM step")
        else:
            trace.step(1, make.step(layers), **decode)
            abstains(trace, model(), "qkv runs 40 blocks of 128x32")


def test_faster_than_the_device_can_be(trace: Any, make: Any, model: Any, decode: dict[str, Any]) -> None:
    """gate_up reads 235 MB: at 3,350 GB/s that takes 70 us; 30 us cannot be this model's."""
    layers = [make.dense(i == 0) for i in range(4)]
    times = {"qkv": 25_000, "o": 20_000, "gate_up": 90_000, "down": 50_000}
    for layer in layers:
        for item in layer:
            item.dur_ns = times.get(item.what, 4_000)
    ids = trace.step(0, make.step(layers), **decode)
    h100 = {0: resolve("h100-sxm")}
    head = trace.store.con.execute("UPDATE kernel SET dur_ns = 400000 WHERE kernel_id = ?", [ids[-2]])
    del head
    assert assign_roles(trace.store, model(), roofs=h100).aligned == 1
    trace.store.con.execute("DELETE FROM cost; UPDATE kernel SET dur_ns = 30000 WHERE dur_ns = 90000")
    abstains(trace, model(), "faster than the datasheet", roofs=h100)


def test_windows_swapped(trace: Any, make: Any, model: Any, decode: dict[str, Any]) -> None:
    """Layers 0 and 2 have the window but take far longer: the layers are not these."""
    windowed = model(model_type="gpt_oss", num_local_experts=8, num_experts_per_tok=2, sliding_window=128,
                     quantization_config={"quant_method": "mxfp4"})  # fmt: skip
    layers = [make.moe(i == 0) for i in range(4)]
    for number, layer in enumerate(layers):
        next(i for i in layer if i.what == "attention").dur_ns = 40_000 if number % 2 == 0 else 10_000
    trace.step(0, make.step(layers), **decode)
    abstains(trace, windowed, "window")
