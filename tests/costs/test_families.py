"""Families, math types and facts from kernel names."""

import csv
from pathlib import Path

import pytest

from diagnose.costs.families import fallback_reason, families, family, math_dtype, name_facts

TYPED = [
    ("Memcpy DtoD (Device -> Device)", "memcpy"),
    ("__amd_rocclr_copyBuffer", "memcpy"),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl"),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, ...)", "custom_comm"),
    ("fused_moe_kernel", "moe_gemm"),
    ("void marlin_moe_wna16::Marlin<__nv_bfloat16, 256, 1, 8, 8, 4, 8>", "moe_gemm"),
    ("void vllm::moe::topkGatingSoftmax<8, 128, 4, 16, int>(float const*)", "moe_aux"),
    ("void vllm::moe::moe_align_block_size_kernel<int>(int const*)", "moe_aux"),
    ("void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8>>", "mla"),
    ("void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>", "attn_merge"),
    ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>", "attn_decode"),
    ("void vllm::paged_attention_v2_kernel<__nv_bfloat16, 128, 16, 128>", "attn_decode"),
    ("BatchDecodeWithPagedKVCacheKernel", "attn_decode"),
    ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>>", "attn_prefill"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x64x128_4x1x1", "attn_prefill"),
    ("BatchPrefillWithPagedKVCacheKernel", "attn_prefill"),
    ("void vllm::concat_and_cache_mla_kernel<__nv_bfloat16>", "kv_write"),
    ("void flashinfer::norm::FusedAddRMSNormKernel<8, __nv_bfloat16>", "norm"),
    ("void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, 128>", "rope"),
    ("void vllm::act_and_mul_kernel<c10::BFloat16, silu_kernel>", "activation"),
    ("void per_token_group_quant_8bit_kernel<__nv_bfloat16, __nv_fp8_e4m3>", "quant"),
    ("void marlin::Marlin<__nv_bfloat16, 256, 1, 8, 8, 4, 8>", "gemm_w4a16"),
    ("void vllm::awq::gemm_forward_4bit_cuda_m16nXk32<128>", "gemm_w4a16"),
    ("tinygemm_m16n8k16_chunk_kernel<ALayout_RM, BLayout_TC_int4>", "gemm_w4a16"),
    ("void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u>", "gemm_lowp"),
    ("nvjet_qqtst_128x128_128x6_1x2_h_bz_NNT", "gemm_lowp"),
    ("_w8a8_block_fp8_matmul", "gemm_lowp"),
    ("void gemv2T_kernel_val<int, int, __nv_bfloat16>", "gemv"),
    ("void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2, 16, 8, 2, 1>", "gemv"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16>", "splitk_epilogue"),
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "gemm"),
    ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "gemm"),
    ("triton_tem_fused_mm_0", "gemm"),
    ("cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64>", "conv"),
    ("RadixTopKKernel_Unified", "sampling"),
    ("triton_per_fused__softmax_3", "softmax"),
    ("triton_red_fused_sum_0", "reduce"),
    ("triton_poi_fused_add_1", "elementwise"),
    ("void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128>>", "ssm"),
    ("void causal_conv1d_update_kernel<Causal_conv1d_update_kernel_traits<64>>", "ssm"),
    ("Kernel", "other"),
    ("", "other"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), TYPED)
def test_typed_names(name: str, expected: str) -> None:
    assert family(name) == expected


def test_every_family_is_listed_once() -> None:
    assert len(families()) == len(set(families()))
    assert families()[-1] == "other"
    assert {expected for _, expected in TYPED} <= set(families())


@pytest.mark.shared_traces
def test_names_seen_in_real_traces(shared: Path) -> None:
    """Every name read in public traces has the class that the table of names gives it (none: 'other')."""
    with (shared.parent / "facts" / "kernel_names_seen.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wrong = [
        (r["name"], r["class_by_csv"], family(r["name"]))
        for r in rows
        if family(r["name"]) != (r["class_by_csv"] or "other")
    ]
    assert len(rows) > 300
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "bf16"),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32", "fp16"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16", "tf32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_ffma", "fp32"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_tn_align4>", "tf32"),
        ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1>", "bf16"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", "fp32"),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", "fp16"),
        ("ampere_sgemm_128x64_nn", "fp32"),
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "bf16"),
        ("nvjet_qqtst_128x128_128x6_1x2_h_bz_NNT", "fp8"),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3", "fp8"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", "fp8"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64", "bf16"),
        ("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128", "fp32"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "bf16"),
        ("attn_fwd", None),
    ],
)  # fmt: skip
def test_math_dtype(name: str, expected: str | None) -> None:
    assert math_dtype(name) == expected


def test_facts_and_fallbacks() -> None:
    align1 = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1>"
    assert {"align1", "built_for_sm75"} <= name_facts(align1)
    assert "align1" not in name_facts("cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_64x6_tn_align16")
    assert "align1" in (fallback_reason(align1, "sm_90") or "")
    sm80 = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>"
    assert "sm_80 on sm_90" in (fallback_reason(sm80, "sm_90") or "")
    assert fallback_reason(sm80, "sm_80") is None
    assert fallback_reason(sm80, None) is None
    assert fallback_reason("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "sm_90") is None
    assert "FlashAttention 2" in (fallback_reason("void pytorch_flash::flash_fwd_kernel<...>", "sm_90") or "")
    assert fallback_reason("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64", "gfx942") is None
