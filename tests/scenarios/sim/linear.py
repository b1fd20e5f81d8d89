"""Linear layers in each weight format: the kernels and operators each one becomes."""

from sim.hardware import Work
from sim.kernels import TORCH, Kernel, Op, Options


class Linear:
    """Makes the kernels of a linear layer. Needs `o` (options), `vendor` and `t` (activation type) set by its user."""

    o: Options
    vendor: str
    t: str

    def stream(
        self, role: str, name: str, op: Op, moved: float, flops: float = 0.0, blocks: int | None = None
    ) -> Kernel:
        """A kernel that moves bytes and does little else."""
        raise NotImplementedError

    def gemm(self, role: str, m: int, k: int, n: int) -> list[Kernel]:
        """A linear layer in the configured weight format."""
        o, flops = self.o, 2.0 * m * n * k
        act = (m * k + m * n) * 2.0
        blocks = max(1, -(-m // 128)) * max(1, -(-n // 128))
        if o.weights == "fp8" and role not in ("lm_head", "router"):
            return self.fp8(role, m, k, n)
        if o.weights == "awq" and role != "lm_head":
            packed = k * n * (0.5 + 2.0 / 128 + 0.5 / 128)
            deq = Op("_C::awq_dequantize", ([k, n // 8], [k // 128, n], [k // 128, n // 8], [], [], []),
                     ("int", "c10::Half", "int", "Scalar", "Scalar", "Scalar"))  # fmt: skip
            mm = Op("aten::mm", ([m, k], [k, n]), (TORCH["fp16"],) * 2,
                    parent=Op("aten::matmul", ([m, k], [k, n]), (TORCH["fp16"],) * 2))  # fmt: skip
            return [
                Kernel("dequant", "vllm::awq::dequantize_weights(int*, __half*, int*, __half*, int, int, int)", deq,
                       Work("stream", 2.0 * k * n, packed + 2.0 * k * n, "fp16", 0.55), k * n // 2048, 256),
                Kernel(role, self.gemm_name(m, "fp16"), mm,
                       Work("gemm", flops, act + 2.0 * k * n, "fp16", o.gemm_quality), blocks, 128),
            ]  # fmt: skip
        if o.weights == "int8" and role != "lm_head":
            return self.int8_mixed(role, m, k, n)
        if o.weights == "marlin" and role != "lm_head":
            op = Op(
                "_C::gptq_marlin_gemm",
                ([m, k], [k // 16, n * 2], [k // 128, n]),
                (TORCH["fp16"], "int", TORCH["fp16"]),
            )
            name = "void marlin::Marlin<__half, 256, 1, 8, 8, 4, 8>(int4 const*, int4 const*, int4*, int4*)"
            # Four-bit weights expanded in registers: the matrix units reach three quarters of their usual rate.
            work = Work("gemm", flops / 0.75, act + k * n * (0.5 + 2.0 / 128), "fp16", o.gemm_quality)
            return [Kernel(role, name, op, work, 108, 256)]
        linear = Op("aten::linear", ([m, k], [n, k], []), (self.t, self.t, ""))
        op = Op("aten::mm", ([m, k], [k, n]), (self.t, self.t), parent=linear)
        quality = o.gemm_quality if role != "lm_head" else 1.0
        return [
            Kernel(
                role,
                self.gemm_name(m, "bf16"),
                op,
                Work("gemm", flops, act + 2.0 * k * n, "bf16", quality),
                blocks,
                128,
            )
        ]

    def fp8(self, role: str, m: int, k: int, n: int) -> list[Kernel]:
        """An FP8 product. Its input is quantised by the norm before it, where there is one, else by a kernel of its own.

        Devices without FP8 units keep the weights in FP8 and multiply in bf16.
        """
        flops, blocks = 2.0 * m * n * k, max(1, -(-m // 128)) * max(1, -(-n // 128))
        if self.vendor == "ampere":
            op = Op("_C::gptq_marlin_gemm", ([m, k], [k // 4, n], [1, n]), (self.t, "int", self.t))
            name = "void marlin::Marlin<__nv_bfloat16, 256, 1, 8, 8, 4, 1>(int4 const*, int4 const*, int4*, int4*)"
            work = Work("gemm", flops, 2.0 * m * k + k * n + 2.0 * m * n, "bf16", self.o.gemm_quality)
            return [Kernel(role, name, op, work, 108, 256)]
        out = []
        if role not in ("qkv", "gate_up"):
            op = Op("_C::dynamic_scaled_fp8_quant", ([m, k], [m, k], [1]), (TORCH["fp8"], self.t, "float"))
            name = ("void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(c10::Float8_e4m3fn*, "
                    "c10::BFloat16 const*, float const*, int, long, long)")  # fmt: skip
            out.append(Kernel("quant", name, op, Work("stream", 2.0 * m * k, m * k * 3.0), m))
        types = (self.t, TORCH["fp8"], TORCH["fp8"], "float", "float", "")
        op = Op("_C::cutlass_scaled_mm", ([m, n], [m, k], [k, n], [1], [1], []), types)
        name = ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, float_e4m3_t>>"
                "(cutlass::gemm::kernel::Params)")  # fmt: skip
        work = Work("gemm", flops, m * k + k * n + 2.0 * m * n, "fp8", self.o.gemm_quality)
        return [*out, Kernel(role, name, op, work, blocks, 384)]

    def int8_mixed(self, role: str, m: int, k: int, n: int) -> list[Kernel]:
        """An int8 product with the outlier columns kept in half precision: seven launches for one linear layer."""
        half = TORCH["fp16"]
        outer = Op(
            "bitsandbytes::int8_mixed_scaled_mm", ([m, k], [n, k], [n]), (half, "signed char", "float")
        )

        def op(name: str, *dims: list[int]) -> Op:
            return Op(name, dims, (half,) * len(dims), parent=outer)

        outliers = max(8, k // 100)
        small = [
            ("int8_absmax", "aten::amax", m * k * 2.0, [m, k]),
            ("int8_quantise", "bitsandbytes::int8_vectorwise_quant", m * k * 3.0, [m, k]),
            ("int8_outliers", "aten::index", m * outliers * 4.0, [m, k]),
            ("int8_unpack", "aten::_to_copy", n * outliers * 3.0, [n, outliers]),
        ]
        out = [
            self.stream(
                r, f"void kInt8Aux_{r}<__half>(__half*, signed char*, float*, int)", op(name, dims), moved
            )
            for r, name, moved, dims in small
        ]
        blocks = max(1, -(-m // 128)) * max(1, -(-n // 128))
        out.append(Kernel(role, "cutlass_80_tensorop_s8_i16832gemm_s8_128x64_128x2_tn_align16", op("aten::_int_mm", [m, k], [k, n]),
                          Work("gemm", 2.0 * m * n * k, m * k + k * n + 4.0 * m * n, "int8"), blocks, 128))  # fmt: skip
        out.append(self.stream("int8_dequant", "void kdequant_mm_int32_fp16<4, 512>(int*, float*, float*, __half*, int, int, int)",
                               op("bitsandbytes::int8_mm_dequant", [m, n]), m * n * 6.0))  # fmt: skip
        out.append(Kernel("int8_outlier_mm", self.gemm_name(m, "fp16"), op("aten::mm", [m, outliers], [outliers, n]),
                          Work("gemm", 2.0 * m * n * outliers, (m * outliers + outliers * n + m * n) * 2.0, "fp16"), blocks, 128))  # fmt: skip
        return out

    def gemm_name(self, m: int, dtype: str) -> str:
        """A stock kernel's name; a fallback kernel carries the older generation's."""
        if self.vendor == "amd":
            half = "BBS_BH" if dtype == "bf16" else "HHS_BH"
            tile = "MT256x32x64" if m <= 64 else "MT256x192x64"
            return f"Cijk_Alik_Bljk_{half}_Bias_HA_S_SAV_UserArgs_{tile}_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1"
        kind = "bf16" if dtype == "bf16" else "fp16"
        if self.o.gemm_quality < 1.0:
            return f"cutlass_80_wmma_tensorop_{kind}_s161616gemm_{kind}_16x16_128x2_tn_align1"
        if self.vendor in ("ampere", "ada"):
            return (
                f"ampere_{kind}_s16816gemm_{kind}_{'64x64' if m <= 64 else '128x128'}_ldg8_f2f_stages_64x3_tn"
            )
        return "nvjet_tst_64x8_64x16_4x1_v_bz_TNN" if m <= 64 else "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
