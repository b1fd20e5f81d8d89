"""From an architecture and a step to the kernels it launches: shapes, operator names, work.

Counting convention: a multiply-add is two operations; a kernel's bytes are each input once and each output once in
stored size. Operator and kernel spellings are those public traces of vLLM, SGLang and Hugging Face carry.
"""

from dataclasses import replace

from sim.arch import Arch, StepPlan
from sim.hardware import DTYPE_BYTES, Work
from sim.kernels import TORCH, Kernel, Op, Options
from sim.linear import Linear

__all__ = ["Kernel", "Op", "Options", "step_kernels"]


def step_kernels(arch: Arch, plan: StepPlan, opt: Options, vendor: str) -> list[list[Kernel]]:
    """The kernels of a step, grouped: embedding, one group per layer, head. Order is launch order."""
    build = _Builder(arch, plan, opt, vendor)
    layer = build.layer()
    return [build.embed(), *([layer] * arch.layers), build.head()]


class _Builder(Linear):
    def __init__(self, arch: Arch, plan: StepPlan, opt: Options, vendor: str) -> None:
        self.a, self.p, self.o, self.vendor = arch, plan, opt, vendor
        self.m = plan.tokens
        self.t = TORCH["bf16"]

    # -- pieces ---------------------------------------------------------------------------------------------------

    def stream(
        self, role: str, name: str, op: Op, moved: float, flops: float = 0.0, blocks: int | None = None
    ) -> Kernel:
        """A kernel that reads and writes `moved` bytes and little else."""
        return Kernel(
            role, name, op, Work("stream", flops, moved, "bf16", self.o.strided), blocks or max(1, self.m)
        )

    def elementwise(
        self, name: str, dims: tuple[object, ...], moved: float, types: tuple[str, ...]
    ) -> Kernel:
        """A plain PyTorch elementwise operator."""
        numel = 1
        for d in dims[0]:  # type: ignore[attr-defined]
            numel *= d
        short = name.split("::")[1]
        strided = self.o.strided < 1.0
        wrapper = "elementwise_kernel<128, 4, " if strided else "vectorized_elementwise_kernel<4, "
        text = f"void at::native::{wrapper}at::native::{short}_functor<c10::BFloat16>, std::array<char*, 3ul> >(int)"
        op = Op(name, dims, types, strided=strided)
        k = self.stream(f"elementwise_{short}", text, op, moved, float(numel), max(1, numel // 512))
        return replace(k, work=replace(k.work, share=self.o.chain))

    def norm(self, m: int, d: int, residual: bool) -> list[Kernel]:
        """RMS norm, fused or as the chain that eager code makes of it."""
        t, n = self.t, m * d
        if not self.o.fused:
            three = [m, d]
            return [
                *([self.elementwise("aten::add", (three, three, []), n * 6.0, (t, t, "Scalar"))] if residual else []),
                self.elementwise("aten::copy_", (three, three, []), n * 6.0, ("float", t, "Scalar")),
                self.elementwise("aten::pow", (three, []), n * 8.0, ("float", "Scalar")),
                self.stream("norm_mean", "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::"
                            "MeanOps<float, float, float, float>, unsigned int, float, 4, 4> >(at::native::ReduceOp)",
                            Op("aten::mean", (three, [], [], []), ("float", "ScalarList", "Scalar", "")), n * 4.0 + m * 4.0, n),
                self.elementwise("aten::add", ([m, 1], [], []), m * 8.0, ("float", "Scalar", "Scalar")),
                self.elementwise("aten::rsqrt", ([m, 1],), m * 8.0, ("float",)),
                self.elementwise("aten::mul", (three, [m, 1]), n * 8.0 + m * 4.0, ("float", "float")),
                self.elementwise("aten::copy_", (three, three, []), n * 6.0, (t, "float", "Scalar")),
                self.elementwise("aten::mul", ([d], three), n * 4.0 + d * 2.0, (t, t)),
            ]  # fmt: skip
        if self.vendor == "amd":
            op = Op("aiter::add_rmsnorm", ([m, d],) * 4 + ([d], []), (t,) * 5 + ("Scalar",))
            name = "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib"
        elif residual:
            op = Op("_C::fused_add_rms_norm", ([m, d], [m, d], [d], []), (t, t, t, "Scalar"))
            name = ("std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
                    "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, c10::BFloat16*)")  # fmt: skip
        else:
            op = Op("_C::rms_norm", ([m, d], [m, d], [d], []), (t, t, t, "Scalar"))
            name = (
                "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, c10::BFloat16 const*, long)"
            )
        return [self.stream("norm", name, op, n * (8.0 if residual else 4.0) + d * 2.0, 5.0 * n)]

    def attention(self) -> list[Kernel]:
        """Paged attention: one kernel for the prefill chunks, one for the decode sequences."""
        a, p, o = self.a, self.p, self.o
        hq, hkv, d = a.heads // o.tp, max(1, a.kv_heads // o.tp), a.head_dim
        e, t, m = DTYPE_BYTES[o.kv_dtype], self.t, self.m
        if o.style == "hf":
            b = len(p.decode) or len(p.prefill)
            lq = 1 if p.decode else p.prefill[0][0]
            lk = p.decode[0] if p.decode else p.prefill[0][1]
            dims = ([b, hq, lq, d], [b, hkv, lk, d], [b, hkv, lk, d], [], [], [])
            types = (t, t, t, "Scalar", "Scalar", "Scalar")
            scalars = ("", "", "", "0.", "True" if lq > 1 else "False", "False")
            parent = Op(
                "aten::scaled_dot_product_attention", (*dims[:3], [], [], [], []), (t, t, t, "", "", "", "")
            )
            op = Op("aten::_scaled_dot_product_flash_attention", dims, types, scalars, parent=parent)
        elif self.vendor == "amd":
            cache = [835874, hkv, d]
            name = "aiter::mha_batch_prefill" if p.prefill else "aiter::paged_attention_ragged"
            op = Op(name, ([m, hq, d], cache, cache, [p.sequences + 1]), (t, t, t, "int"))
        else:
            outer = Op("vllm::unified_attention_with_output", ([m, hq, d], [m, hkv, d], [m, hkv, d], [m, hq, d], [], [], []),
                       (t,) * 4 + ("", "", ""))  # fmt: skip
            library = "_vllm_fa2_C::varlen_fwd" if self.vendor in ("ampere", "ada") else "_vllm_fa3_C::fwd"
            cache = [40000, 16, hkv, d]
            op = Op(
                library,
                ([m, hq, d], cache, cache, [], [], [], [m, hq, d]),
                (t, t, t, "", "", "", t),
                parent=outer,
            )
        out: list[Kernel] = []
        if p.prefill:
            new, ctx = sum(n for n, _ in p.prefill), sum(c for _, c in p.prefill)
            moved = 2 * new * hq * d * 2.0 + 2 * ctx * hkv * d * e
            work = Work("attn_prefill", 4.0 * hq * d * p.prefill_pairs, moved, "bf16", o.attention_quality,
                        max(1, new // len(p.prefill)))  # fmt: skip
            name = ("_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_40BlockFmhaBatchPrefillPipelineQRKSVSAsync"
                    if self.vendor == "amd" else
                    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>, true>(flash::Flash_fwd_params)"
                    if self.vendor in ("ampere", "ada") else
                    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cutlass::bfloat16_t, float> > > >"
                    "(flash::FlashAttnFwdSm90::Params)")  # fmt: skip
            out.append(Kernel("attention_prefill", name, op, work, max(1, new // 128) * hq))
        if p.decode:
            moved = 2 * p.context * hkv * d * e + 2 * len(p.decode) * hq * d * 2.0
            work = Work("attn_decode", 4.0 * hq * d * p.context, moved, "bf16", o.attention_quality)
            name = ("void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0, 16>"
                    if self.vendor == "amd" else
                    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t>, true>(flash::Flash_fwd_params)"
                    if self.vendor in ("ampere", "ada") or o.style == "hf" else
                    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cutlass::bfloat16_t, float, true> > > >"
                    "(flash::FlashAttnFwdSm90::Params)")  # fmt: skip
            splits = max(1, p.context // max(1, len(p.decode)) // 256)
            out.append(Kernel("attention_decode", name, op, work, len(p.decode) * hkv * splits, 128))
        return out

    def all_reduce(self) -> list[Kernel]:
        """The tensor-parallel sum after attention and after the feed-forward."""
        if self.o.tp == 1:
            return []
        m, d = self.m, self.a.hidden
        outer = Op("vllm::all_reduce", ([m, d], []), (self.t, ""))
        op = Op(
            "c10d::allreduce_",
            ([[m, d]], [], [], [], [], []),
            ("TensorList", "", "", "", "Scalar", "Scalar"),
            parent=outer,
        )
        work = Work("collective", 0.0, m * d * 4.0)
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        return [Kernel("all_reduce", name, op, work, 24, 512, payload=m * d * 2.0)]

    # -- groups ---------------------------------------------------------------------------------------------------

    def embed(self) -> list[Kernel]:
        """Token embedding."""
        m, d, v = self.m, self.a.hidden, self.a.vocab // self.o.tp
        op = Op("aten::embedding", ([v, d], [m], [], [], []), (self.t, "long int", "Scalar", "Scalar", "Scalar"),
                ("", "", "-1", "False", "False"))  # fmt: skip
        name = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
        return [self.stream("embedding", name, op, m * d * 4.0 + m * 8.0)]

    def layer(self) -> list[Kernel]:
        """One decoder layer."""
        a, o, m, t = self.a, self.o, self.m, self.t
        hq, hkv, d = a.heads // o.tp, max(1, a.kv_heads // o.tp), a.head_dim
        out = self.norm(m, a.hidden, residual=True)
        out += self.gemm("qkv", m, a.hidden, (hq + 2 * hkv) * d)
        amd = self.vendor == "amd"
        rope = Op("sgl_kernel::rotary_embedding" if amd else "_C::rotary_embedding",
                  ([m], [m, hq * d], [m, hkv * d], [], [131072, d], []),
                  ("long int", t, t, "Scalar", t, "Scalar"))  # fmt: skip
        rope_name = "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*)"
        out.append(
            self.stream(
                "rope",
                rope_name,
                rope,
                4.0 * m * (hq + hkv) * d + m * d * 2.0 + 8.0 * m,
                3.0 * m * (hq + hkv) * d,
            )
        )
        if o.style != "hf":
            e = DTYPE_BYTES[o.kv_dtype]
            cache = "sglang::store_cache" if amd else "_C_cache_ops::reshape_and_cache_flash"
            op = Op(cache, ([m, hkv, d], [m, hkv, d], [40000, 16, hkv, d], [40000, 16, hkv, d], [m], [], [], []),
                    (t, t, t, t, "long int", "", "float", "float"))  # fmt: skip
            name = (f"void (anonymous namespace)::store_kvcache<{hkv * d * e:.0f}l, 4, false, long>(StoreKVCacheParams)" if amd else
                    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>"
                    "(__nv_bfloat16 const*, __nv_bfloat16 const*)")  # fmt: skip
            out.append(self.stream("kv_write", name, op, 2.0 * m * hkv * d * (2 + e) + 8.0 * m))
        if o.kv_concat and self.p.decode:
            out += self.concat(hkv, d)
        out += self.attention()
        out += self.gemm("o", m, hq * d, a.hidden)
        out += self.all_reduce()
        out += self.norm(m, a.hidden, residual=True)
        out += self.experts() if a.experts else self.mlp()
        out += self.all_reduce()
        return out

    def concat(self, hkv: int, d: int) -> list[Kernel]:
        """Old keys and values copied into a longer tensor: the work grows with the context."""
        b, ctx = len(self.p.decode), self.p.decode[0]
        op = Op(
            "aten::cat", ([[b, hkv, ctx - 1, d], [b, hkv, 1, d]], []), ("TensorList", "Scalar"), ("", "-2")
        )
        name = ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<at::native::(anonymous namespace)::"
                "OpaqueType<2u>, unsigned int, 4, 64, 64>(at::native::OpaqueType<2u>*)")  # fmt: skip
        one = self.stream(
            "kv_concat", name, op, 4.0 * b * hkv * ctx * d, 0.0, max(1, b * hkv * ctx * d // 4096)
        )
        return [one, replace(one, op=replace(op))]

    def mlp(self) -> list[Kernel]:
        """Gated feed-forward."""
        a, m, i, t = self.a, self.m, self.a.intermediate // self.o.tp, self.t
        out = self.gemm("gate_up", m, a.hidden, 2 * i)
        if self.o.fused:
            amd = self.vendor == "amd"
            op = Op("sgl_kernel::silu_and_mul" if amd else "_C::silu_and_mul", ([m, i], [m, 2 * i]), (t, t))
            name = ("_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS3_PS4_i"
                    if amd else
                    "void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel<c10::BFloat16>(c10::BFloat16 const&)), true>")  # fmt: skip
            out.append(self.stream("activation", name, op, 6.0 * m * i, 5.0 * m * i))
        else:
            out.append(self.elementwise("aten::silu", ([m, i],), 4.0 * m * i, (t,)))
            out.append(self.elementwise("aten::mul", ([m, i], [m, i]), 6.0 * m * i, (t, t)))
        return out + self.gemm("down", m, i, a.hidden)

    def experts(self) -> list[Kernel]:
        """Router and grouped expert GEMMs; only the experts that tokens reach are read."""
        a, m, i, t = self.a, self.m, self.a.intermediate // self.o.tp, self.t
        touched = a.experts * (1.0 - (1.0 - a.experts_per_token / a.experts) ** m)
        slots = m * a.experts_per_token
        out = self.gemm("router", m, a.hidden, a.experts)
        moe = Op("vllm::moe_forward", ([m, a.hidden], [m, a.experts], []), (t, t, ""))
        out.append(self.stream("moe_topk", "void vllm::moe::topkGatingSoftmax<4, 8, 4, 16, int>(float const*, bool const*, float*)",
                               Op("_moe_C::topk_softmax", ([m, 2], [m, 2], [m, 2], [m, a.experts]), ("float", "int", "int", "float"),
                                  parent=moe), m * a.experts * 4.0 + slots * 12.0))  # fmt: skip
        e, top = a.experts, a.experts_per_token
        op = Op("vllm::inplace_fused_experts", ([m, a.hidden], [e, 2 * i, a.hidden], [e, a.hidden, i], [m, top], [m, top]),
                (t, t, t, "float", "int"), parent=moe)  # fmt: skip
        low = self.o.weights == "fp8"
        for role, k, n in (("expert_gate_up", a.hidden, 2 * i), ("expert_down", i, a.hidden)):
            moved = touched * k * n * (1.0 if low else 2.0) + slots * (k + n) * 2.0
            dtype = "fp8" if low and self.vendor != "ampere" else "bf16"
            work = Work("gemm", 2.0 * slots * k * n, moved, dtype, self.o.gemm_quality)
            out.append(Kernel(role, "fused_moe_kernel", op, work, max(1, -(-slots // 16)) * (n // 64), 128))
            if role == "expert_gate_up":
                name = "void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel<c10::BFloat16>), true>"
                out.append(self.stream("moe_activation", name, op, 6.0 * slots * i, 5.0 * slots * i, slots))
        name = "void vllm::moe::moe_sum_kernel<c10::BFloat16, 2>(c10::BFloat16*, c10::BFloat16 const*, int)"
        out.append(self.stream("moe_sum", name, op, 2.0 * (slots + m) * a.hidden))
        return out

    def head(self) -> list[Kernel]:
        """Final norm, logits of one token per sequence, sampling."""
        a, s, v = self.a, self.p.sequences, self.a.vocab // self.o.tp
        out = self.norm(self.m, a.hidden, residual=True)
        out += self.gemm("lm_head", s, a.hidden, v)
        out.append(self.stream("logits_cast", "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda"
                               "(at::TensorIteratorBase&)::{lambda()#3}, std::array<char*, 2ul>, 4>(int)",
                               Op("aten::copy_", ([s, v], [s, v], []), ("float", self.t, "Scalar")), s * v * 6.0, 0.0,
                               max(1, s * v // 512)))  # fmt: skip
        if self.o.sampler_sort:
            op = Op(
                "aten::sort",
                ([s, v], [], [], []),
                ("float", "Scalar", "Scalar", "Scalar"),
                ("", "False", "-1", "False"),
            )
            name = "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<at_cuda_detail::cub::DeviceRadixSortPolicy<float, long>>"
            for _ in range(4):
                work = Work("stream", 0.0, 2.0 * s * v * 12, "fp32", 0.45)
                out.append(Kernel("sampler_sort", name, op, work, max(1, s * v // 4096)))
        out.append(self.stream("sample", "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, "
                               "unsigned int, long, 4, 4> >(at::native::ReduceOp)",
                               Op("aten::argmax", ([s, v], [], []), ("float", "Scalar", "Scalar"), ("", "-1", "False")),
                               s * v * 4.0 + s * 8.0, float(s * v), s))  # fmt: skip
        return out
